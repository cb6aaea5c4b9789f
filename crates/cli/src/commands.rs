use crate::args::{Args, Command, ConvertArgs, activations};
use crate::{chat, models, output};
use foretoken_app::{LoadedCheckpoint, ModelPlace, Paths, bench, checkpoints, error};
use foretoken_protocol::{ErrorCode, InspectReport, NormConvention, WireError};
use std::process::ExitCode;

/// A model named on the command line. Under the name the library has for it, it brings the head the library has for it,
/// as in the window.
fn place(id: &str, head: Option<&str>) -> Result<ModelPlace, WireError> {
    let paths = Paths::find(None);
    let (settings, _) = foretoken_app::settings::load(&paths.data.join("settings.json"));
    let stored = settings.model_heads.get(id).filter(|_| head.is_none());
    if let Some(stored) = stored {
        output::progress(&format!("MTP head from {stored}, as chosen for {id}; --head overrides"));
    }
    let head = head.or(stored.map(String::as_str));
    foretoken_app::place(&paths.library(&settings.model_folders), id.to_owned(), head)
}

fn open(id: &str, head: Option<&str>, int8: bool) -> Result<LoadedCheckpoint, WireError> {
    let place = ModelPlace { activations: activations(int8), ..place(id, head)? };
    let opened = LoadedCheckpoint::open(&place, |_, _, _| {}, || false)
        .map_err(|e| foretoken_app::from_engine(&e))?;
    opened.ok_or_else(|| error(ErrorCode::Internal, "The model was not loaded. Try again."))
}

pub fn run(args: Args) -> Result<ExitCode, WireError> {
    match args.command {
        Command::Chat(args) => {
            let at = place(&args.model, args.head.as_deref())?;
            chat::run(&args, ModelPlace { anyway: args.anyway, ..at }).map(|()| ExitCode::SUCCESS)
        }
        Command::Logits { model, head, ids, out, int8, json } => {
            let ids: Vec<u32> = chat::read_json(&ids, "a JSON list of token ids")?;
            let at = place(&model, head.as_deref())?;
            let with = (at.head.as_deref(), activations(int8));
            let shapes = checkpoints::export_logits(&at.folder, with, &ids, &out)?;
            if json {
                let shapes: serde_json::Map<_, _> = shapes
                    .into_iter()
                    .map(|(name, dims)| (name, serde_json::json!(dims)))
                    .collect();
                output::json(&serde_json::json!({"out": out, "tensors": shapes}));
            } else {
                shapes.iter().for_each(|(name, dims)| output::line(&format!("{name} {dims:?}")));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Inspect { model, head, context, load, json } => {
            if model.starts_with("hf:") {
                refuse_for_the_hub(head.as_deref(), load)?;
                models::inspect_remote(&model, context, json)?;
                return Ok(ExitCode::SUCCESS);
            }
            let at = place(&model, head.as_deref())?;
            let head = at.head.as_deref();
            let report = checkpoints::inspect_folder(&at.folder, head, context, load)?;
            if json {
                output::json(&report)
            } else {
                print_report(&report)
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Convert(args) => convert(&args).map(|()| ExitCode::SUCCESS),
        Command::Bench {
            model,
            head,
            prompts,
            max_tokens,
            repetitions,
            deepest,
            long,
            exact,
            json,
        } => {
            let loaded = open(&model, head.as_deref(), !exact)?;
            let plan = bench::BenchPlan {
                prompts_per_class: prompts.max(1),
                max_tokens: max_tokens.max(2),
                repetitions: repetitions.max(1),
                deepest,
                long,
            };
            let report = bench::run(&loaded, plan, output::progress)
                .map_err(|e| foretoken_app::from_engine(&e))?;
            if json {
                output::json(&report);
                return Ok(ExitCode::SUCCESS);
            }
            output::line(&format!(
                "{} on {}, {} tokens, medians of {} repetitions",
                report.model, report.device, report.max_tokens, report.repetitions
            ));
            output::line("class  depth   tok/s  to plain  accepted  tokens/cycle");
            for d in &report.decode {
                let accepted =
                    d.accept_rate.map_or("-".to_owned(), |a| format!("{:.1}%", a * 100.0));
                output::line(&format!(
                    "{:6} {:5} {:7.1} {:8.2}x {accepted:>9} {:13.2}",
                    d.class, d.depth, d.tok_s, d.ratio_to_plain, d.tokens_per_cycle
                ));
            }
            let costs: Vec<_> =
                report.passes.iter().map(|p| format!("{:.2}", p.ratio_to_plain)).collect();
            output::line(&format!(
                "a pass of 1 to 8 rows over one of 1 ({:.2} ms): {}",
                report.passes.first().map_or(0.0, |p| p.ms),
                costs.join(" ")
            ));
            for p in &report.prefill {
                output::line(&format!("prefill of {}: {:.0} tok/s", p.tokens, p.tok_s));
            }
            for c in &report.contexts {
                output::line(&format!("a plain step after {} tokens: {:.2} ms", c.tokens, c.ms));
            }
            if let Some(b) = &report.bandwidth {
                output::line(&format!(
                    "a plain step reads {:.1} MB at {:.1} GB/s; this machine reads as much at {:.1} GB/s ({:.0}%), {} threads",
                    b.step_bytes as f64 / 1e6,
                    b.step_gb_s,
                    b.machine_gb_s,
                    100.0 * b.step_gb_s / b.machine_gb_s,
                    report.threads
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Exact { model, head, prompts, max_tokens, int8, json } => {
            let loaded = open(&model, head.as_deref(), int8)?;
            let mut held_out = bench::held_out();
            held_out.truncate(prompts.unwrap_or(usize::MAX).max(1));
            let report = bench::exact(&loaded, &held_out, max_tokens.max(1), output::progress)
                .map_err(|e| foretoken_app::from_engine(&e))?;
            let same = report.different.is_empty();
            if json {
                output::json(&report);
            } else {
                output::line(&format!(
                    "{} prompts, {} tokens, depths 0 to 8: {} continuations differ from plain decoding",
                    report.prompts,
                    report.tokens,
                    report.different.len()
                ));
                if let Some(rate) = report.accept_rate_depth_1 {
                    output::line(&format!("accepted at depth 1: {:.1}%", rate * 100.0));
                }
                let per_cycle: Vec<_> =
                    report.tokens_per_cycle.iter().map(|t| format!("{t:.2}")).collect();
                output::line(&format!("tokens per cycle by depth: {}", per_cycle.join(" ")));
            }
            if same {
                Ok(ExitCode::SUCCESS)
            } else {
                Err(error(
                    ErrorCode::Internal,
                    "The text changes with the depth. Report this with the model's name.",
                ))
            }
        }
        Command::List { json } => models::list(json).map(|()| ExitCode::SUCCESS),
        Command::Pull(args) => models::pull(&args),
        Command::Check { model, json } => models::check(&model, json),
        Command::Rm { model, yes, json } => {
            models::remove(&model, yes, json).map(|()| ExitCode::SUCCESS)
        }
    }
}

/// What is only asked of a model on this disk.
fn refuse_for_the_hub(head: Option<&str>, load: bool) -> Result<(), WireError> {
    if head.is_none() && !load {
        return Ok(());
    }
    let message = "A model of the hub is looked at without its weights: --head and --load need one on this disk. Leave them out, or pull it first.";
    Err(error(ErrorCode::InvalidOption, message))
}

fn convert(args: &ConvertArgs) -> Result<(), WireError> {
    let ConvertArgs { source, target, head, json, .. } = args;
    let mut shown = 0;
    let written = checkpoints::convert(
        source,
        target,
        head.as_deref(),
        args.plan().as_ref(),
        |done, total| {
            let percent = done * 100 / total.max(1);
            if percent >= shown + 10 {
                shown = percent;
                if *json {
                    output::json(
                        &serde_json::json!({"kind": "progress", "done": done, "total": total}),
                    )
                } else {
                    output::progress(&format!("{percent}%"))
                }
            }
        },
    )?;
    if *json {
        output::json(
            &serde_json::json!({"out": target, "tensors": written.tensors, "bytes": written.bytes,
            "by_storage": written.by_storage, "head": written.head, "notes": written.notes}),
        );
    } else {
        let parts: Vec<_> = written
            .by_storage
            .iter()
            .map(|(name, bytes)| format!("{name} {:.1} MB", *bytes as f64 / 1e6))
            .collect();
        output::line(&format!(
            "{} tensors, {:.1} MB ({}) in {}",
            written.tensors,
            written.bytes as f64 / 1e6,
            parts.join(", "),
            target.display()
        ));
        written.notes.iter().for_each(|note| output::line(note));
    }
    Ok(())
}

fn print_report(r: &InspectReport) {
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    output::line(&format!(
        "{} ({}, {} layers, {:.1} M parameters)",
        r.name,
        r.family,
        r.layers,
        r.parameters as f64 / 1e6
    ));
    output::line(&format!("context {} tokens, vocabulary {}", r.context_size, r.vocab_size));
    output::line(&r.head.sentence);
    for q in &r.quantisation {
        output::line(&format!(
            "  {:18} {:10} {:4} modules {:>12}",
            q.kind,
            q.storage,
            q.modules,
            mb(q.bytes)
        ));
    }
    let m = &r.memory;
    output::line(&format!(
        "weights {}, head {}, KV {} bytes per token",
        mb(m.weights),
        mb(m.head),
        m.kv_per_token
    ));
    output::line(&format!(
        "needs {} at {} tokens; {} free",
        mb(m.needed),
        m.context,
        mb(m.available)
    ));
    for norms in &r.norms {
        let how = match norms.convention {
            NormConvention::Plain => continue,
            NormConvention::OneAdded => "norms stored as 1 + w",
            NormConvention::AsTrained => "norms stored as trained, 1 is added at load",
        };
        output::line(&format!("{}: {how}", norms.file));
    }
    if let Some(load) = r.load {
        let copied =
            load.copied.map_or(String::new(), |bytes| format!(", {} of it copied", mb(bytes)));
        output::line(&format!(
            "loaded in {:.0} ms, {} in memory{copied}",
            load.load_ms,
            mb(load.resident)
        ));
    }
    r.notes.iter().for_each(|note| output::line(note));
}
