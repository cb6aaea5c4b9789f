//! Loads the checkpoint and generates: without drafting while the map is untouched, at every depth, and past a long prompt.

use crate::layout::Layout;
use crate::place::{Resident, go_on, resident};
use crate::released::Family;
use crate::report::{Memory, Prompt, Report, Run};
use crate::{Failure, Outcome};
use foretoken_engine::decode::{Rule, SamplerSettings, Sequence};
use foretoken_engine::models::{Activations, LoadOptions, Model, load_checkpoint};
use foretoken_engine::weights::Checkpoint;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const TOKENS: usize = 32;
const SHORT_PROMPT: usize = 16;
/// Longer than Step's window of 512 and what a sliding cache lets pile up behind it, so that it lets rows go.
const LONG_PROMPT: usize = 900;
/// Tokens after the long prompt, and rows that are compared with single passes.
const FEW: usize = 8;
/// Bytes that loading may take besides the map: it takes a tenth of a megabyte, and the embedding alone has 300.
const MAX_COPIED: u64 = 8 << 20;
const DEPTHS: [usize; 4] = [0, 1, 2, 3];
/// Rows per pass of a prompt, as the app reads it.
const CHUNK: usize = 128;

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

struct Check {
    family: Family,
    model: Arc<Model>,
    memory: Vec<Memory>,
}

pub fn measure(
    layout: &Layout,
    folder: &Path,
    written_s: f64,
    activations: Activations,
) -> Outcome<Report> {
    let family = layout.family;
    let before = Memory { when: "before loading".into(), resident: resident() };
    let options = LoadOptions { activations, ..Default::default() };
    let began = Instant::now();
    let checkpoint = Checkpoint::open(folder)?;
    let headers_ms = milliseconds(began);
    let model = Arc::new(load_checkpoint(&checkpoint, options)?);
    let load_ms = milliseconds(began);
    drop(checkpoint);
    let mut check = Check { family, model, memory: vec![before] };
    check.remember("loaded");
    check.nothing_was_copied()?;
    check.everything_is_used(layout)?;

    let prompt = check.prompt(SHORT_PROMPT);
    let mut runs = vec![check.generate(&mut check.begun(&prompt)?, 0, TOKENS)?];
    check.remember("32 tokens, drafting off");
    for depth in DEPTHS {
        runs.push(check.generate(&mut check.begun(&prompt)?, depth, TOKENS)?);
    }
    check.same_text(&runs)?;
    check.remember("32 tokens at each depth");
    check.rows_stand_alone(&prompt[..FEW])?;
    let long = check.long_prompt()?;
    check.remember(&format!("prompt of {LONG_PROMPT}"));
    Ok(Report {
        model: family.name(),
        layout: layout.describe(),
        device: foretoken_engine::device_name(activations),
        bytes: layout.n_bytes(),
        files: layout.files.len(),
        tensors: layout.files.iter().map(|(_, tensors)| tensors.len()).sum(),
        written_s,
        load_ms,
        headers_ms,
        memory: check.memory,
        untouched: runs.remove(0),
        runs,
        prompt: long,
    })
}

impl Check {
    fn wrong(&self, what: String) -> Failure {
        Failure::Wrong { family: self.family, what }
    }

    fn remember(&mut self, when: &str) {
        self.memory.push(Memory { when: when.to_owned(), resident: resident() });
    }

    /// Weights stay in the map: what loading takes of its own is norms, names and places.
    fn nothing_was_copied(&self) -> Outcome<()> {
        let own = |m: &Memory| m.resident.and_then(|r| r.anonymous);
        let [before, loaded] = [0, 1].map(|at| self.memory.get(at).and_then(own));
        match before.zip(loaded).map(|(before, loaded)| loaded.saturating_sub(before)) {
            Some(grown) if grown > MAX_COPIED => Err(self.wrong(format!(
                "loading took {:.0} MB besides the map of the files",
                grown as f64 / 1e6
            ))),
            _ => Ok(()),
        }
    }

    /// No leftovers, the head with its levels, and every parameter that was written in some module.
    fn everything_is_used(&self, layout: &Layout) -> Outcome<()> {
        let model = &self.model;
        if let [first, ..] = model.leftovers.as_slice() {
            let what = format!("{} tensors are left over, {first} first", model.leftovers.len());
            return Err(self.wrong(what));
        }
        let levels = model.head.as_ref().map_or(0, |head| head.levels());
        if levels != layout.n("num_nextn_predict_layers") {
            return Err(self.wrong(format!("{levels} levels found: {:?}", model.head_status)));
        }
        let modules = model.trunk_modules.iter().chain(&model.head_modules);
        let loaded: u64 = modules.filter(|m| m.kind != "norm").map(|m| m.parameters).sum();
        let written: usize = layout.matrices().map(|(_, n)| n).sum();
        if loaded != written as u64 {
            return Err(self.wrong(format!("{loaded} parameters loaded of {written} written")));
        }
        Ok(())
    }

    /// Ids from all over the vocabulary, its ends among them.
    fn prompt(&self, n: usize) -> Vec<u32> {
        let last = self.model.trunk.shape().vocab - 1;
        (0..n).map(|i| (i * last / (n - 1)) as u32).collect()
    }

    /// A sequence that has read `prompt`.
    fn begun(&self, prompt: &[u32]) -> Outcome<Sequence> {
        let mut sequence = Sequence::new(self.model.clone());
        self.read(&mut sequence, prompt)?;
        Ok(sequence)
    }

    /// Returns the rows that were kept from before.
    fn read(&self, sequence: &mut Sequence, prompt: &[u32]) -> Outcome<usize> {
        let kept = sequence.set_prompt(prompt)?;
        while sequence.needs_prefill() {
            go_on()?;
            sequence.prefill(CHUNK)?;
        }
        Ok(kept)
    }

    fn generate(&self, sequence: &mut Sequence, depth: usize, n: usize) -> Outcome<Run> {
        let (first, mut drafted, mut accepted) = (sequence.tokens().len(), 0, 0);
        let mut times = Vec::new();
        while sequence.tokens().len() < first + n {
            go_on()?;
            let began = Instant::now();
            let step =
                sequence.step(depth, &SamplerSettings::default(), Rule::Residual, &mut ())?;
            times.push(milliseconds(began));
            drafted += step.drafted;
            accepted += step.accepted;
        }
        let tokens_per_cycle = (sequence.tokens().len() - first) as f64 / times.len() as f64;
        times.sort_by(f64::total_cmp);
        Ok(Run {
            depth,
            ms_per_token: times[times.len() / 2] / tokens_per_cycle,
            tokens_per_cycle,
            drafted,
            accepted,
            tokens: sequence.tokens()[first..first + n].to_vec(),
        })
    }

    fn same_text(&self, runs: &[Run]) -> Outcome<()> {
        let plain = &runs[0].tokens;
        match runs.iter().find(|run| run.tokens != *plain) {
            Some(run) => {
                let at = run.tokens.iter().zip(plain).take_while(|(a, b)| a == b).count();
                Err(self.wrong(format!("depth {} differs from depth 0 at token {at}", run.depth)))
            }
            None => Ok(()),
        }
    }

    /// The text rests on the embedding more than on the layers: their bits are compared as well.
    fn rows_stand_alone(&self, tokens: &[u32]) -> Outcome<()> {
        let trunk = &self.model.trunk;
        let bits = |tokens: &[u32], cache: &mut _| -> Outcome<Vec<u32>> {
            go_on()?;
            let hidden = trunk.forward(tokens, cache)?;
            let logits = trunk.logits(&trunk.norm(&hidden)?)?;
            let values = logits.flatten_all().and_then(|t| t.to_vec1::<f32>());
            let values = values.map_err(foretoken_engine::EngineError::from)?;
            Ok(values.into_iter().map(f32::to_bits).collect())
        };
        let together = bits(tokens, &mut trunk.new_cache())?;
        for rows in [1, 4] {
            let mut cache = trunk.new_cache();
            let mut apart = Vec::new();
            for some in tokens.chunks(rows) {
                apart.extend(bits(some, &mut cache)?);
            }
            if apart != together {
                let n = tokens.len();
                return Err(self.wrong(format!("a pass of {n} rows differs from passes of {rows}")));
            }
        }
        Ok(())
    }

    /// Reads a prompt longer than the window and goes on from it, then takes the continuation back and goes on with drafts.
    fn long_prompt(&self) -> Outcome<Prompt> {
        let prompt = self.prompt(LONG_PROMPT);
        let began = Instant::now();
        let mut sequence = self.begun(&prompt)?;
        let read_s = began.elapsed().as_secs_f64();
        let plain = self.generate(&mut sequence, 0, FEW)?;
        let kept = self.read(&mut sequence, &prompt)?;
        let drafting = self.generate(&mut sequence, DEPTHS[3], FEW)?;
        let runs = [plain, drafting];
        self.same_text(&runs)?;
        let levels = self.model.head.as_ref().map_or(0, |head| head.levels());
        if kept + levels + 1 < LONG_PROMPT {
            return Err(
                self.wrong(format!("{kept} rows of the prompt were kept for its second use"))
            );
        }
        let cache_bytes = sequence.n_bytes() as u64;
        Ok(Prompt { tokens: LONG_PROMPT, read_s, cache_bytes, runs: runs.into() })
    }
}

impl Layout {
    fn describe(&self) -> String {
        let (experts, heads) = match self.family {
            Family::Step3p5 => {
                let other = &self.config["attention_other_setting"]["num_attention_heads"];
                ("moe_num_experts", format!("{} and {other}", self.n("num_attention_heads")))
            }
            Family::HyV3 => ("num_experts", self.n("num_attention_heads").to_string()),
        };
        let levels = match self.n("num_nextn_predict_layers") {
            1 => "1 level".to_owned(),
            n => format!("{n} levels"),
        };
        format!(
            "hidden {}, vocabulary {}, {heads} heads, {} experts; {} layers, a head of {levels}",
            self.n("hidden_size"),
            self.n("vocab_size"),
            self.n(experts),
            self.n("num_hidden_layers"),
        )
    }
}

impl Memory {
    pub fn megabytes(&self) -> [Option<f64>; 3] {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let part = |of: fn(Resident) -> Option<u64>| self.resident.and_then(of).map(mb);
        [part(|r| r.anonymous), part(|r| r.mapped), part(|r| Some(r.total))]
    }
}
