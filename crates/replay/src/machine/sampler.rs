//! The thread that records how late it wakes up, and reads the host's counters once per bucket.

use std::{
    io,
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use super::{
    SharedBuckets,
    host::HostSampler,
    wakeup::{WakeupClock, WakeupDelays},
};

/// The running sampler thread, which is stopped on drop.
#[derive(Debug)]
pub(super) struct Sampler {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts a thread that measures from `start` on.
    pub(super) fn start(
        start: Instant,
        host: HostSampler,
        buckets: SharedBuckets,
    ) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = is_over.clone();
        let thread = thread::Builder::new()
            .name("replay-machine".to_owned())
            .spawn(move || run(start, host, &buckets, &stop))?;
        Ok(Self { is_over, thread: Some(thread) })
    }

    /// Stops the thread at its next deadline, and waits until it has ended.
    pub(super) fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the sampler does not panic");
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn run(start: Instant, mut host: HostSampler, buckets: &SharedBuckets, is_over: &AtomicBool) {
    // The kernel delays wake-ups by up to 50 µs to combine them, which says nothing about load. If
    // it refuses this setting, the measured delays include those 50 µs.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    sleep_until(start);
    host.start();
    let mut clock = WakeupClock::new(start);
    let mut delays = WakeupDelays::default();
    loop {
        sleep_until(clock.deadline());
        let now = Instant::now();
        let bucket = clock.bucket();
        delays.record(now.saturating_duration_since(clock.deadline()));
        clock.advance(now);
        let is_last = is_over.load(Ordering::Relaxed);
        if is_last || clock.bucket() != bucket {
            buckets.update(bucket, |bucket| {
                delays.write(bucket);
                host.sample(bucket);
            });
            delays = WakeupDelays::default();
        }
        if is_last {
            return;
        }
    }
}

fn sleep_until(deadline: Instant) {
    thread::sleep(deadline.saturating_duration_since(Instant::now()));
}

#[test]
fn sampler_measures_at_least_one_bucket() {
    let buckets = SharedBuckets::default();
    let mut sampler =
        Sampler::start(Instant::now(), HostSampler::new("/proc"), buckets.clone()).unwrap();
    sampler.stop();
    let first = buckets.take()[0];
    assert!(first.wakeup_count >= Some(1), "{first:?}");
    assert!(first.interval_us > Some(0) && first.replay_cpu_us.is_some(), "{first:?}");
}
