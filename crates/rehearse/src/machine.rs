//! The load of this machine during a run, from `/proc/stat`.

use std::fs;

use howdah_report::rehearsal::MachineSummary;

/// Processor time since the machine started, in clock ticks, over all processors.
///
/// Source: proc_stat(5), the line `cpu`: user, nice, system, idle, iowait, irq, softirq, steal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessorTicks {
    processors: u32,
    total: u64,
    idle: u64,
    io_wait: u64,
    steal: u64,
}

impl ProcessorTicks {
    /// The present values; `None` where `/proc/stat` does not exist.
    pub(crate) fn sample() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let ticks: Vec<u64> = text
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let &[_, _, _, idle, io_wait, _, _, steal, ..] = &ticks[..] else { return None };
        let processors = text.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
        Some(Self {
            processors: u32::try_from(processors).ok()?,
            // The columns after steal are parts of user and nice.
            total: ticks[..8].iter().sum(),
            idle,
            io_wait,
            steal,
        })
    }

    /// The load from `earlier` until now.
    pub(crate) fn since(self, earlier: Self) -> MachineSummary {
        let total = self.total.saturating_sub(earlier.total).max(1) as f64;
        let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / total;
        let (idle, io_wait) =
            (share(self.idle, earlier.idle), share(self.io_wait, earlier.io_wait));
        MachineSummary {
            processors: self.processors,
            busy: (1.0 - idle - io_wait).clamp(0.0, 1.0),
            steal: share(self.steal, earlier.steal),
            io_wait,
        }
    }
}

#[test]
fn load_is_computed_from_two_samples() {
    let sample = |text: &str| ProcessorTicks::parse(text).unwrap();
    let before = sample("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 5\n");
    let after = sample("cpu  150 0 110 720 110 0 0 10 0 0\ncpu0 1\ncpu1 1\nintr 5\n");
    let load = after.since(before);
    assert_eq!(load.processors, 2);
    assert_eq!((load.busy * 100.0).round(), 70.0);
    assert_eq!((load.steal * 100.0).round(), 10.0);
    assert_eq!((load.io_wait * 100.0).round(), 10.0);
    assert!(ProcessorTicks::parse("intr 5").is_none());
}
