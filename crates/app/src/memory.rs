//! What this process and this machine hold in memory.

use foretoken_protocol::Machine;
use std::path::Path;

/// Bytes of this process that are in memory now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    pub total: u64,
    /// Not backed by a file: what was copied or computed. `None` where the system does not tell.
    pub anonymous: Option<u64>,
}

pub fn resident() -> Resident {
    let mut system = sysinfo::System::new();
    let total = sysinfo::get_current_pid().ok().and_then(|pid| {
        system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[pid]), false);
        system.process(pid).map(sysinfo::Process::memory)
    });
    Resident { total: total.unwrap_or(0), anonymous: anonymous() }
}

/// `RssAnon` of proc(5).
fn anonymous() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}

/// Memory of this machine, what a model may take of it now, and free disk where `models` are downloaded to.
pub fn machine(models: &Path) -> Machine {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let memory = system.total_memory();
    let available = gpu_limit(memory)
        .map_or(system.available_memory(), |limit| limit.min(system.available_memory()));
    let disk_free = foretoken_library::download::free_space(models).map_or(0, |(_, free)| free);
    Machine { memory, available, disk_free }
}

/// Bytes the GPU of a Mac may keep resident. `iogpu.wired_limit_mb` is what a person has set; 0 = the system's own choice,
/// about three quarters of the memory (what `recommendedMaxWorkingSetSize` answers on machines of 64 GB and more).
fn gpu_limit(memory: u64) -> Option<u64> {
    if std::env::consts::OS != "macos" {
        return None;
    }
    let asked = std::process::Command::new("sysctl").args(["-n", "iogpu.wired_limit_mb"]).output();
    let text = asked.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    Some(working_set(memory, text.ok().and_then(|text| text.trim().parse().ok())))
}

fn working_set(memory: u64, limit_mb: Option<u64>) -> u64 {
    match limit_mb {
        Some(mb) if mb > 0 => mb << 20,
        _ => memory / 4 * 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_set_counts_and_else_three_quarters() {
        assert_eq!(working_set(64 << 30, Some(57_344)), 56 << 30);
        assert_eq!(working_set(64 << 30, Some(0)), 48 << 30);
        assert_eq!(working_set(64 << 30, None), 48 << 30);
    }

    #[test]
    fn this_machine_has_memory_and_a_disk() {
        let machine = machine(&std::env::temp_dir().join("not/there/yet"));
        assert!(machine.available > 0 && machine.available <= machine.memory, "{machine:?}");
        assert!(machine.disk_free > 0);
    }

    #[test]
    fn a_touched_allocation_is_seen() {
        let before = resident();
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident();
        assert!(after.total >= before.total + (held.len() as u64) / 2, "{before:?} {after:?}");
        if let (Some(before), Some(after)) = (before.anonymous, after.anonymous) {
            assert!(after >= before + (held.len() as u64) / 2);
        }
    }
}
