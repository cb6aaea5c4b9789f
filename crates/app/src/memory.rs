//! What this process and this machine hold in memory.

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

#[cfg(test)]
mod tests {
    use super::*;

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
