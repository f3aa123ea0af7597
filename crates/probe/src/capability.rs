//! The Linux capabilities of this process that probes need.

use std::fs;

/// The effective capabilities of a process; see capabilities(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    effective: u64,
}

const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

impl Capabilities {
    /// Returns the capabilities of this process; none if `/proc` cannot be read.
    pub fn current() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::from_status(&status)
    }

    fn from_status(status: &str) -> Self {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        Self { effective: effective.unwrap_or(0) }
    }

    /// Whether the capabilities allow loading and attaching BPF programs.
    pub fn may_trace(self) -> bool {
        self.has(SYS_ADMIN) || self.has(BPF) && self.has(PERFMON)
    }

    /// Whether the capabilities allow reading the memory of other users' processes.
    pub fn may_read_others(self) -> bool {
        self.has(SYS_PTRACE)
    }

    /// Returns the names of the capabilities missing for tracing or, if none is missing, the other
    /// requirements, as text for the user.
    pub fn missing(self) -> String {
        let required = [(BPF, "CAP_BPF"), (PERFMON, "CAP_PERFMON")];
        let missing: Vec<_> = required
            .into_iter()
            .filter(|(number, _)| !self.has(*number))
            .map(|(_, name)| name)
            .collect();
        match missing[..] {
            // Before Linux 5.8 only root may trace, and a container's security profile may forbid
            // what a capability allows.
            [] => "root, or a security profile that allows bpf(2)".to_owned(),
            _ => format!("{} (or root)", missing.join(" and ")),
        }
    }

    fn has(self, number: u32) -> bool {
        self.effective >> number & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let none = Capabilities::from_status("Name:\tx\nCapEff:\t0000000000000000\n");
        assert_eq!(none.missing(), "CAP_BPF and CAP_PERFMON (or root)");
        assert!(!none.may_trace() && !none.may_read_others());
        let one = Capabilities::from_status("CapEff:\t0000008000080000\n");
        assert_eq!(one.missing(), "CAP_PERFMON (or root)");
        assert!(one.may_read_others());
        let both = Capabilities::from_status("CapEff:\t000000c000000000\n");
        assert!(both.may_trace());
        assert!(Capabilities::from_status("CapEff:\t000001ffffffffff\n").may_trace());
    }
}
