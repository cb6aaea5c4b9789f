//! Commands about models on the hub and on this disk.

use crate::args::PullArgs;
use crate::output;
use foretoken_app::fit::gb;
use foretoken_app::{App, Paths, error};
use foretoken_protocol::*;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// What a shell answers for a program that was interrupted.
const INTERRUPTED: u8 = 130;
/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(100);

fn open() -> Result<App, WireError> {
    App::open(Paths::find(None))
}

/// Raised by Ctrl-C and by what ends programs.
fn interrupts() -> Result<Arc<AtomicBool>, WireError> {
    let flag = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&flag);
    ctrlc::set_handler(move || raised.store(true, Ordering::Release)).map_err(|e| WireError {
        code: ErrorCode::Internal,
        message: "Ctrl-C cannot be listened to. Run the command again.".to_owned(),
        detail: e.to_string(),
    })?;
    Ok(flag)
}

pub fn pull(args: &PullArgs) -> Result<ExitCode, WireError> {
    let interrupted = interrupts()?;
    let app = open()?;
    let request = wanted(&app, args)?;
    let download = app.download_start(request)?;
    // After the start: what is first told of it is no longer how an earlier run left it.
    let (send, events) = channel();
    app.downloads_watch(move |event| drop(send.send(event)))?;
    let ended = follow(&app, &download, &events, args.json, &interrupted);
    app.shutdown();
    match ended? {
        Some(model) => {
            if args.json {
                output::json(&serde_json::json!({"kind": "finished", "model": model}));
            } else {
                let head_alone = download.head_only && download.for_model.is_none();
                output::line(&match head_alone {
                    true => format!("the head is in {model}; --for MODEL puts it on a model"),
                    false => format!("{model} is ready: foretoken chat {model}"),
                });
            }
            Ok(ExitCode::SUCCESS)
        }
        None => {
            output::progress(&format!(
                "Paused; nothing is lost. To go on: foretoken pull {}",
                again(args)
            ));
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

/// The words after `pull`, once more.
fn again(args: &PullArgs) -> String {
    let mut words = vec![args.repository.clone()];
    words.extend(args.revision.iter().map(|revision| format!("--revision {revision}")));
    words.extend(args.head_only.then(|| "--head-only".to_owned()));
    words.extend(args.model.iter().map(|model| format!("--for {model}")));
    words.join(" ")
}

fn wanted(app: &App, args: &PullArgs) -> Result<StartDownload, WireError> {
    let PullArgs { repository, revision, head_only, model, .. } = args;
    if revision.is_some() && (repository.contains('@') || repository.contains("://")) {
        let message =
            "The revision is named twice. Give owner/name and --revision, or the address alone.";
        return Err(error(ErrorCode::InvalidOption, message));
    }
    let at = revision.as_ref().map_or(repository.clone(), |r| format!("{repository}@{r}"));
    if !head_only {
        return Ok(StartDownload { repository: at, for_model: None, head_only: false });
    }
    // A model on this disk brings its head with it: where that is has to be found out first.
    let here = app
        .models_list()?
        .into_iter()
        .find(|m| m.id == *repository || (m.repository.as_ref() == Some(repository) && !m.missing));
    let here = here
        .map(|m| m.id)
        .or_else(|| std::path::Path::new(repository).is_dir().then(|| repository.clone()));
    let for_model = model.clone().or(here.clone());
    let repository = match here {
        Some(id) if model.is_none() => match app.model_find_head(ModelRef { id: id.clone() })? {
            HubHead::Elsewhere { repository, .. } => repository,
            HubHead::Missing { sentence } => return Err(error(ErrorCode::NotFound, sentence)),
            HubHead::Here { .. } => {
                let message =
                    format!("{id} has its MTP head already. Chat with it: foretoken chat {id}.");
                return Err(error(ErrorCode::InvalidOption, message));
            }
        },
        _ => at,
    };
    Ok(StartDownload { repository, for_model, head_only: true })
}

/// Shows a download and the head that comes with it until both have ended: the model's id, or `None` when interrupted.
fn follow(
    app: &App,
    download: &ModelDownload,
    events: &Receiver<DownloadEvent>,
    json: bool,
    interrupted: &AtomicBool,
) -> Result<Option<String>, WireError> {
    let mut seen: BTreeMap<String, ModelDownload> = BTreeMap::new();
    let mut line = Line::default();
    let ours = |d: &ModelDownload| {
        let its_head = d.head_only && d.for_model.as_ref() == Some(&download.repository);
        d.id == download.id || (!download.head_only && its_head)
    };
    loop {
        if interrupted.load(Ordering::Acquire) {
            for id in seen.keys() {
                app.download_pause(DownloadRef { id: id.clone() })?;
            }
            line.end();
            return Ok(None);
        }
        match events.recv_timeout(LOOK) {
            Ok(DownloadEvent::Changed { download: d }) if ours(&d) => {
                if json {
                    output::json(&DownloadEvent::Changed { download: d.clone() });
                } else {
                    line.show(&d);
                }
                seen.insert(d.id.clone(), d);
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(error(ErrorCode::Internal, "The download has ended. Start it again."));
            }
        }
        let rests = |d: &ModelDownload| {
            matches!(
                d.state,
                DownloadState::Done { .. } | DownloadState::Failed { .. } | DownloadState::Paused
            )
        };
        if seen.contains_key(&download.id) && seen.values().all(rests) {
            line.end();
            return result(&seen, &download.id);
        }
    }
}

fn result(seen: &BTreeMap<String, ModelDownload>, id: &str) -> Result<Option<String>, WireError> {
    let failed = seen.values().find_map(|d| match &d.state {
        DownloadState::Failed { error } => Some(error.clone()),
        _ => None,
    });
    match (failed, seen.get(id).map(|d| &d.state)) {
        (Some(error), _) => Err(error),
        (None, Some(DownloadState::Done { model })) => Ok(Some(model.clone())),
        (None, _) => Ok(None),
    }
}

/// One line that is written over on a terminal; elsewhere a line for every tenth.
#[derive(Default)]
struct Line {
    shown: BTreeMap<String, u64>,
    state: String,
    is_open: bool,
}

impl Line {
    fn show(&mut self, d: &ModelDownload) {
        let what =
            if d.head_only { format!("{} (MTP head)", d.repository) } else { d.repository.clone() };
        let state = match &d.state {
            DownloadState::Queued => "waits for its turn".to_owned(),
            DownloadState::Preparing => "is looked at".to_owned(),
            DownloadState::Running => numbers(d),
            DownloadState::Waiting { error, .. } => error.message.clone(),
            DownloadState::Paused => "paused".to_owned(),
            DownloadState::Verifying => "hashes are compared".to_owned(),
            DownloadState::Attaching => "the head is written".to_owned(),
            DownloadState::Done { .. } => "done".to_owned(),
            DownloadState::Failed { .. } => "failed".to_owned(),
        };
        let text = format!("{what}: {state}");
        if std::io::stderr().is_terminal() {
            let mut err = std::io::stderr().lock();
            // Progress that nobody reads is no reason to stop.
            drop(write!(err, "\r\x1b[2K{text}").and_then(|()| err.flush()));
            self.is_open = true;
            return;
        }
        let tenth = d.done * 10 / d.total.max(1);
        let running = d.state == DownloadState::Running;
        let news = match running {
            true => self.shown.insert(d.id.clone(), tenth) != Some(tenth),
            false => self.state != text,
        };
        if news {
            output::progress(&text);
            self.state = text;
        }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            output::progress("");
        }
    }
}

fn numbers(d: &ModelDownload) -> String {
    let percent = d.done * 100 / d.total.max(1);
    let left = d.remaining_ms.map_or(String::new(), |ms| {
        let seconds = ms / 1000;
        format!(", {}:{:02}:{:02} left", seconds / 3600, seconds / 60 % 60, seconds % 60)
    });
    format!("{percent}% of {}, {:.1} MB/s{left}", gb(d.total), d.speed / 1e6)
}

pub fn inspect_remote(text: &str, context: Option<u32>, json: bool) -> Result<(), WireError> {
    let app = open()?;
    let mut model = app.hub_inspect(HubName { text: text.to_owned() })?;
    if context.is_some() {
        // By its name and not by a folder of the same one.
        model.fit = app.model_fit(FitRequest { id: model.repository.clone(), context })?;
    }
    app.shutdown();
    if json {
        output::json(&model);
        return Ok(());
    }
    let HubModel { repository, revision, commit, family, files, bytes, have_bytes, .. } = &model;
    output::line(&format!("{repository} at {revision} ({commit})"));
    let layers = model.layers.map_or(String::new(), |n| format!(", {n} layers"));
    let bits = model.bits.map_or(String::new(), |n| format!(", {n} bit"));
    output::line(&format!("{family}{layers}{bits}"));
    output::line(&format!("{files} files, {}, {} of it on this disk", gb(*bytes), gb(*have_bytes)));
    output::line(&match &model.head {
        HubHead::Here { bytes } => format!("MTP head in its own files, {}", gb(*bytes)),
        HubHead::Elsewhere { repository, bytes } => {
            format!("MTP head in {repository}, {} to fetch", gb(*bytes))
        }
        HubHead::Missing { sentence } => sentence.clone(),
    });
    output::line(&model.fit.sentence);
    model.problem.iter().for_each(|problem| output::line(problem));
    Ok(())
}

pub fn check(id: &str, json: bool) -> Result<ExitCode, WireError> {
    let interrupted = interrupts()?;
    let app = open()?;
    let (send, events) = channel();
    app.model_check(ModelRef { id: id.to_owned() }, move |event| drop(send.send(event)))?;
    let mut tenth = 0;
    let end = loop {
        if interrupted.load(Ordering::Acquire) {
            app.model_cancel_check()?;
        }
        let event = match events.recv_timeout(LOOK) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                break Err(error(ErrorCode::Internal, "The check has ended. Start it again."));
            }
        };
        if json {
            output::json(&event);
        }
        match event {
            CheckEvent::Progress { done, total, file } => {
                let now = done * 10 / total.max(1);
                if now > std::mem::replace(&mut tenth, now) && !json {
                    output::progress(&format!("{}%, {file}", now * 10));
                }
            }
            CheckEvent::Finished { report } => break Ok(Some(report)),
            CheckEvent::Cancelled => break Ok(None),
            CheckEvent::Failed { error } => break Err(error),
        }
    };
    app.shutdown();
    match end? {
        None => Ok(ExitCode::from(INTERRUPTED)),
        Some(report) if report.damaged.is_empty() && report.missing.is_empty() => {
            if !json {
                output::line(&report.sentence);
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(report) => Err(error(ErrorCode::Corrupt, report.sentence)),
    }
}

pub fn remove(id: &str, yes: bool, json: bool) -> Result<(), WireError> {
    let app = open()?;
    // A download that never ended is no model yet.
    let begun = app.library_shelf()?.downloads.into_iter().find(|d| d.repository == id);
    let is_here = app.models_list()?.iter().any(|m| m.id == id);
    let (question, frees, folder) = match begun.as_ref().filter(|_| !is_here) {
        Some(d) => (format!("Delete what was fetched of {id}, {}?", gb(d.done)), d.done, None),
        None => {
            let plan = app.model_delete_plan(ModelRef { id: id.to_owned() })?;
            let question = match plan.only_forgets {
                true => format!("Take {id} off the list? Its folder stays as it is."),
                false => format!("Delete {id}? That frees {}.", gb(plan.frees)),
            };
            (question, plan.frees, Some(plan.folder))
        }
    };
    if !yes && !confirmed(&question)? {
        output::progress("Nothing was deleted.");
        return Ok(());
    }
    let freed = match (begun, is_here) {
        (Some(d), false) => app.download_discard(DownloadRef { id: d.id })?,
        _ => {
            app.model_delete(ModelRef { id: id.to_owned() })?;
            frees
        }
    };
    app.shutdown();
    if json {
        output::json(&serde_json::json!({"id": id, "folder": folder, "freed": freed}));
    } else {
        output::line(&format!("{id} is gone, {} are free again", gb(freed)));
    }
    Ok(())
}

fn confirmed(question: &str) -> Result<bool, WireError> {
    if !std::io::stdin().is_terminal() {
        let message = "Nobody is there to be asked. Add --yes to delete without a question.";
        return Err(error(ErrorCode::InvalidOption, message));
    }
    let mut err = std::io::stderr().lock();
    // A question nobody can see is not answered with yes.
    drop(write!(err, "{question} [y/N] ").and_then(|()| err.flush()));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes"))
}

pub fn list(json: bool) -> Result<(), WireError> {
    let app = open()?;
    for model in &app.models_list()? {
        let problem = model.problem.as_deref().map_or(String::new(), |p| format!("  ({p})"));
        match json {
            true => output::json(model),
            false => output::line(&format!("{}  {}{problem}", model.id, gb(model.bytes))),
        }
    }
    for d in &app.library_shelf()?.downloads {
        let what = if d.head_only { "MTP head of " } else { "" };
        let percent = d.done * 100 / d.total.max(1);
        match json {
            true => output::json(d),
            false => output::line(&format!(
                "{what}{}  {percent}% of {} is fetched; to go on: foretoken pull {}",
                d.repository,
                gb(d.total),
                d.repository
            )),
        }
    }
    app.shutdown();
    Ok(())
}
