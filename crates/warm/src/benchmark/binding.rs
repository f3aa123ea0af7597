//! Binds the client and its backend to two processors during a measurement.
//!
//! The two work in turn. On one processor they switch in a few µs; on two, each message wakes an
//! idle processor, which takes several times as long. The scheduler moves them between both
//! arrangements, mostly after other work such as the warming, so equal warm servers would differ by
//! a factor of four. Two processors are also how clients and backends usually run.

use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// A binding of the calling thread and of a backend to different processors. Dropping it releases
/// the thread; the backend stays bound, because it ends with its session.
#[derive(Debug)]
pub(crate) struct ProcessorBinding {
    before: CpuSet,
}

impl ProcessorBinding {
    /// Binds the calling thread and the process `backend`. Returns `None`, without binding either,
    /// if they may not run on two processors, or if the backend belongs to another user and this
    /// process lacks the privilege.
    pub(crate) fn bind(backend: i32) -> Option<Self> {
        let backend = Pid::from_raw(backend)?;
        let before = sched_getaffinity(None).ok()?;
        let for_backend = sched_getaffinity(Some(backend)).ok()?;
        let allowed: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&it| before.is_set(it) && for_backend.is_set(it))
            .collect();
        let (client_processor, backend_processor) = choose(&allowed)?;
        sched_setaffinity(Some(backend), &only(backend_processor)).ok()?;
        let binding = Self { before };
        if sched_setaffinity(None, &only(client_processor)).is_err() {
            // Let the backend run where it did before.
            let _ = sched_setaffinity(Some(backend), &for_backend);
            return None;
        }
        Some(binding)
    }
}

impl Drop for ProcessorBinding {
    fn drop(&mut self) {
        // If this fails, the thread stays on its processor, which slows only the next stages.
        let _ = sched_setaffinity(None, &self.before);
    }
}

fn only(processor: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(processor);
    set
}

/// Chooses two processors. Of many, neither is the first, which often handles interrupts.
fn choose(allowed: &[usize]) -> Option<(usize, usize)> {
    match *allowed {
        [] | [_] => None,
        [first, second] => Some((first, second)),
        [.., last] => Some((allowed[allowed.len() / 2], last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_and_backend_are_bound_to_different_processors() {
        assert_eq!(choose(&[]), None);
        assert_eq!(choose(&[3]), None);
        assert_eq!(choose(&[3, 5]), Some((3, 5)));
        assert_eq!(choose(&[0, 1, 2]), Some((1, 2)));
        assert_eq!(choose(&(0..64).collect::<Vec<_>>()), Some((32, 63)));
    }

    #[test]
    fn binding_of_the_thread_ends_with_it() {
        let before = sched_getaffinity(None).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let backend = i32::try_from(child.id()).unwrap();
        // A machine with one processor has no binding.
        if let Some(binding) = ProcessorBinding::bind(backend) {
            let ours = sched_getaffinity(None).unwrap();
            let theirs = sched_getaffinity(Pid::from_raw(backend)).unwrap();
            assert_eq!((ours.count(), theirs.count()), (1, 1));
            assert_ne!(ours, theirs);
            drop(binding);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ProcessorBinding::bind(backend).is_none(), "the process has ended");
    }
}
