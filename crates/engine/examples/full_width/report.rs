//! What a check measured, as a short table or as one line of JSON.

use crate::place::Resident;
use serde::Serialize;
use std::fmt;

#[derive(Debug, Serialize)]
pub struct Memory {
    pub when: String,
    pub resident: Option<Resident>,
}

/// One greedy continuation.
#[derive(Debug, Serialize)]
pub struct Run {
    pub depth: usize,
    /// Of the median cycle: the machine may be shared.
    pub ms_per_token: f64,
    pub tokens_per_cycle: f64,
    pub drafted: usize,
    pub accepted: usize,
    #[serde(skip)]
    pub tokens: Vec<u32>,
}

#[derive(Debug, Serialize)]
pub struct Prompt {
    pub tokens: usize,
    pub read_s: f64,
    pub cache_bytes: u64,
    /// Drafting off, and at the deepest depth on the same caches.
    pub runs: Vec<Run>,
}

#[derive(Debug, Serialize)]
pub struct Report {
    pub model: &'static str,
    pub layout: String,
    pub device: String,
    pub bytes: u64,
    pub files: usize,
    pub tensors: usize,
    pub written_s: f64,
    pub load_ms: f64,
    /// The part of `load_ms` that read the shards' headers.
    pub headers_ms: f64,
    pub memory: Vec<Memory>,
    /// The first text after loading: its cycles also bring the weights' pages in.
    pub untouched: Run,
    pub runs: Vec<Run>,
    pub prompt: Prompt,
}

impl Report {
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and names are JSON")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gigabytes = self.bytes as f64 / 1e9;
        writeln!(f, "{}: {}", self.model, self.layout)?;
        writeln!(
            f,
            "{gigabytes:.2} GB, {} tensors in {} files, written in {:.1} s; {}",
            self.tensors, self.files, self.written_s, self.device
        )?;
        writeln!(
            f,
            "loaded in {:.1} ms, {:.1} of it headers; no leftovers",
            self.load_ms, self.headers_ms
        )?;
        writeln!(f, "\n{:28}{:>14}{:>14}{:>14}", "resident, MB", "anonymous", "mapped", "all")?;
        for memory in &self.memory {
            write!(f, "{:28}", memory.when)?;
            for megabytes in memory.megabytes() {
                let text = megabytes.map_or("not told".to_owned(), |mb| format!("{mb:.1}"));
                write!(f, "{text:>14}")?;
            }
            writeln!(f)?;
        }
        let after = format!("after {} tokens", self.prompt.tokens);
        writeln!(
            f,
            "\n{:28}{:>14}{:>14}{:>14}",
            "drafting", "ms/token", "tokens/cycle", "accepted"
        )?;
        let untouched = std::iter::once(("weights untouched", &self.untouched));
        let short = self.runs.iter().map(|run| ("", run));
        let long = self.prompt.runs.iter().map(|run| (after.as_str(), run));
        for (how, run) in untouched.chain(short).chain(long) {
            let depth = match run.depth {
                0 => "off".to_owned(),
                depth => format!("depth {depth}"),
            };
            let name = if how.is_empty() { depth } else { format!("{depth}, {how}") };
            let accepted = format!("{} of {}", run.accepted, run.drafted);
            writeln!(
                f,
                "{name:28}{:>14.1}{:>14.2}{accepted:>14}",
                run.ms_per_token, run.tokens_per_cycle
            )?;
        }
        writeln!(
            f,
            "\nprompt of {} read in {:.1} s, {:.0} tok/s; caches hold {:.1} MB",
            self.prompt.tokens,
            self.prompt.read_s,
            self.prompt.tokens as f64 / self.prompt.read_s,
            self.prompt.cache_bytes as f64 / 1e6
        )?;
        writeln!(
            f,
            "every depth gave the same tokens, and a row has the same bits alone and among others"
        )
    }
}
