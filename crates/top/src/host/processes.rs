//! Processor time, memory and disk bytes of the server's processes.

use std::collections::HashMap;

use super::{TICKS_PER_SECOND, reading::ProcessReading};

/// Figures of a server process at one moment. Rates are averages since the previous sample, and
/// `None` in the first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessFigures {
    /// Processor time, in percent of one processor: that of a process with one thread is at most
    /// 100.
    pub cpu_percent: Option<f64>,
    /// Memory that is not shared and not a file's, in bytes: without shared buffers and program
    /// code.
    pub memory_bytes: Option<i64>,
    /// Bytes per second that the process had read from disks. Like `write_bytes` `None` unless this
    /// program, or the agent, may see it: as root or as the server's user.
    pub read_bytes: Option<f64>,
    /// Bytes per second that the process caused to be written to disks.
    pub write_bytes: Option<f64>,
}

impl ProcessFigures {
    /// Number of integers that encode the figures.
    pub(crate) const FIELDS: usize = 4;

    /// Encodes the figures as integers for a recording: hundredths of a percent, and bytes.
    pub(crate) fn fields(&self) -> [Option<i64>; Self::FIELDS] {
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let integer = |number: Option<f64>, factor: f64| number.map(|it| (it * factor) as i64);
        [
            integer(self.cpu_percent, 100.0),
            self.memory_bytes,
            integer(self.read_bytes, 1.0),
            integer(self.write_bytes, 1.0),
        ]
    }

    /// Decodes the integers of [`Self::fields`]; `None` if all are missing.
    pub(crate) fn from_fields(fields: &[Option<i64>; Self::FIELDS]) -> Option<Self> {
        #[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
        let number = |at: usize, factor: f64| fields[at].map(|it| it as f64 / factor);
        fields.iter().any(Option::is_some).then(|| Self {
            cpu_percent: number(0, 100.0),
            memory_bytes: fields[1],
            read_bytes: number(2, 1.0),
            write_bytes: number(3, 1.0),
        })
    }
}

/// The previous readings of processes, from which rates are computed.
#[derive(Debug, Default)]
pub(super) struct ProcessRates {
    before: HashMap<i32, ProcessReading>,
}

impl ProcessRates {
    /// Returns the figures of the processes by process id.
    pub(super) fn update(
        &mut self,
        readings: impl Iterator<Item = ProcessReading>,
    ) -> HashMap<i32, ProcessFigures> {
        let mut current = HashMap::new();
        let mut figures = HashMap::new();
        for now in readings {
            let before = self.before.get(&now.pid);
            let before = before.filter(|before| before.started_ticks == now.started_ticks);
            let rates = before.map_or_else(ProcessFigures::default, |before| rates(before, &now));
            figures.insert(now.pid, ProcessFigures { memory_bytes: now.memory_bytes, ..rates });
            current.insert(now.pid, now);
        }
        self.before = current;
        figures
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
fn rates(before: &ProcessReading, now: &ProcessReading) -> ProcessFigures {
    let seconds = now.at_us.saturating_sub(before.at_us) as f64 / 1e6;
    let rate = |before: u64, now: u64| {
        now.checked_sub(before).filter(|_| seconds > 0.0).map(|more| more as f64 / seconds)
    };
    ProcessFigures {
        cpu_percent: rate(before.cpu_ticks, now.cpu_ticks)
            .map(|ticks| 100.0 * ticks / TICKS_PER_SECOND as f64),
        memory_bytes: None,
        read_bytes: before.read_bytes.zip(now.read_bytes).and_then(|(a, b)| rate(a, b)),
        write_bytes: before.written_bytes.zip(now.written_bytes).and_then(|(a, b)| rate(a, b)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{super::reading::ProcessStat, *};

    #[test]
    fn rates_cover_the_time_between_samples() {
        let reading = |seconds: u64, cpu_ticks, disk: Option<(u64, u64)>| ProcessReading {
            pid: 7,
            started_ticks: 1,
            at_us: seconds * 1_000_000,
            cpu_ticks,
            memory_bytes: None,
            read_bytes: disk.map(|(read, _)| read),
            written_bytes: disk.map(|(_, written)| written),
        };
        let found = rates(&reading(0, 100, Some((0, 10))), &reading(2, 200, Some((2048, 10))));
        assert_eq!(found.cpu_percent, Some(50.0));
        assert_eq!((found.read_bytes, found.write_bytes), (Some(1024.0), Some(0.0)));
        let hidden = rates(&reading(0, 100, None), &reading(2, 200, Some((2048, 10))));
        assert_eq!((hidden.cpu_percent, hidden.read_bytes), (Some(50.0), None));
        let same_moment = rates(&reading(0, 100, None), &reading(0, 100, None));
        assert_eq!(same_moment.cpu_percent, None);
        // The same id, another process.
        let mut processes = ProcessRates::default();
        processes.update([reading(0, 100, None)].into_iter());
        let later = ProcessReading { started_ticks: 2, ..reading(2, 200, None) };
        assert_eq!(processes.update([later].into_iter())[&7].cpu_percent, None);
    }

    #[test]
    fn only_children_of_the_same_parent_are_read() {
        let own = i32::try_from(std::process::id()).unwrap();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let parent = ProcessStat::parse(&stat).unwrap().parent;
        let mut rates = ProcessRates::default();
        let mut read = || {
            let pids = [own, 1].into_iter();
            rates.update(pids.filter_map(|pid| ProcessReading::of_child(pid, parent)))
        };
        let first = read();
        assert_eq!(first.len(), 1);
        assert!(first[&own].memory_bytes > Some(0) && first[&own].cpu_percent.is_none());
        let second = read();
        assert!(second[&own].cpu_percent.is_some() && second[&own].read_bytes.is_some());
        let fields = second[&own].fields();
        assert_eq!(
            ProcessFigures::from_fields(&fields).unwrap().memory_bytes,
            second[&own].memory_bytes
        );
        assert_eq!(ProcessFigures::from_fields(&[None; ProcessFigures::FIELDS]), None);
    }
}
