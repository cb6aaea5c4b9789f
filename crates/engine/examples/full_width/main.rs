//! Released models at full width without their weights (`./dev full-width`): writes checkpoints of random 4-bit weights with
//! the released layer shapes but two layers and the head, loads them, generates, and says what that took.
//!
//! Fails when a draft depth changes the text, when rows of one pass differ from single passes, or when a tensor is left over.
//! Settings are `released`, tensors `layout`, files `write`; `run` loads and generates; `place` is disk, memory and Ctrl-C.
#![allow(clippy::print_stdout)]
#![recursion_limit = "256"] // `json!` takes a step for every setting of a released configuration

mod layout;
mod place;
mod released;
mod report;
mod run;
mod write;

use self::layout::Layout;
use self::place::Workplace;
use self::released::{Family, Width};
use self::report::Report;
use foretoken_engine::models::Activations;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Why a check ended without a report.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(
        "usage: full_width [step3p5] [hy_v3] [--in FOLDER] [--tiny] [--exact] [--json]; {0:?} is not understood"
    )]
    Usage(String),
    #[error("{} needs {:.1} GB of disk in {} and {:.1} GB are free; --in FOLDER names another place",
        family.name(), *need as f64 / 1e9, place.display(), *free as f64 / 1e9)]
    NoRoom { family: Family, place: PathBuf, need: u64, free: u64 },
    #[error("stopped; the temporary checkpoint is removed")]
    Stopped,
    #[error("{family}: {what}", family = family.name())]
    Wrong { family: Family, what: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Engine(#[from] foretoken_engine::EngineError),
}

impl Failure {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Stopped => 130,
            _ => 1,
        }
    }
}

type Outcome<T> = Result<T, Failure>;

struct Options {
    families: Vec<Family>,
    parent: PathBuf,
    width: Width,
    activations: Activations,
    json: bool,
}

impl Options {
    fn parse(args: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut out = Self {
            families: Vec::new(),
            parent: std::env::temp_dir(),
            width: Width::Released,
            activations: Activations::Int8,
            json: false,
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => out.json = true,
                "--exact" => out.activations = Activations::Exact,
                "--tiny" => out.width = Width::Tiny,
                "--in" => out.parent = args.next().ok_or(Failure::Usage(arg))?.into(),
                name => {
                    let family = Family::ALL.into_iter().find(|family| family.name() == name);
                    out.families.push(family.ok_or(Failure::Usage(arg))?);
                }
            }
        }
        if out.families.is_empty() {
            out.families = Family::ALL.into();
        }
        Ok(out)
    }
}

/// One family from nothing to its report; the checkpoint is gone afterwards, whatever happens.
fn check(family: Family, width: Width, parent: &Path, activations: Activations) -> Outcome<Report> {
    let layout = Layout::of(family, width);
    let place = Workplace::new(family, parent, layout.n_bytes())?;
    let began = std::time::Instant::now();
    write::checkpoint(&layout, place.folder())?;
    let seconds = began.elapsed().as_secs_f64();
    let report = run::measure(&layout, place.folder(), seconds, activations)?;
    place.remove()?;
    Ok(report)
}

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).and_then(|options| {
        place::stop_on_signals();
        options.families.iter().try_for_each(|family| {
            if !options.json {
                println!("{}: writing the checkpoint ...", family.name());
            }
            let report = check(*family, options.width, &options.parent, options.activations)?;
            if options.json {
                println!("{}", report.json());
            } else {
                println!("{report}");
            }
            Ok(())
        })
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("full-width: {why}");
            ExitCode::from(why.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrunken_shapes_pass_and_nothing_stays_on_disk() {
        let parent = tempfile::tempdir().expect("a folder");
        for family in Family::ALL {
            // Random weights draft better in f32; the mixture has to be somewhere between always and never.
            let activations = Activations::Exact;
            let report = check(family, Width::Tiny, parent.path(), activations).expect("passes");
            // Drafts that are always or never accepted would leave a side of the cycle out.
            let rates: Vec<f64> = report.runs.iter().map(|run| run.tokens_per_cycle).collect();
            assert!(rates.iter().any(|rate| *rate > 1.0), "{rates:?}");
            assert!(report.runs.iter().any(|run| run.accepted < run.drafted), "{rates:?}");
        }
        assert_eq!(std::fs::read_dir(parent.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn shapes_are_the_released_ones() {
        let n_parameters = |family: Family, is_part: &dyn Fn(&str) -> bool| -> usize {
            let layout = Layout::of(family, Width::Released);
            layout.matrices().filter(|(path, _)| is_part(path)).map(|(_, n)| n).sum()
        };
        let step = n_parameters(Family::Step3p5, &|path| path.starts_with("mtp.layers.0."));
        assert_eq!(step / 1_000_000, 809, "of `reference/step3p5.md` 1");
        let hy3 = n_parameters(Family::HyV3, &|path| path.starts_with("mtp."));
        let norms = 5 * 4096 + 2 * 128;
        assert_eq!(hy3 + norms, 3_752_612_096, "of `reference/hy_v3.md` 2.1");
    }

    #[test]
    fn a_full_disk_is_told_before_anything_is_written() {
        let parent = tempfile::tempdir().expect("a folder");
        let Err(why) = Workplace::new(Family::HyV3, parent.path(), u64::MAX / 2) else {
            panic!("there is room for everything")
        };
        assert!(why.to_string().starts_with("hy_v3 needs"), "{why}");
        assert_eq!(std::fs::read_dir(parent.path()).expect("a folder").count(), 0);
    }
}
