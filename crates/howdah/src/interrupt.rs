//! Ctrl-C and SIGTERM: the first requests a clean stop, the second stops immediately.

use std::sync::{Arc, OnceLock, atomic::AtomicBool};

use signal_hook::consts::{SIGINT, SIGTERM};

/// The flag that a signal sets. Signals keep their default action until the flag is requested, so
/// that Ctrl-C still kills a command that never checks it.
#[derive(Debug, Default)]
pub(crate) struct Interrupt(OnceLock<Arc<AtomicBool>>);

impl Interrupt {
    /// Returns the flag, and installs the signal handlers on the first call.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        let flag = self.0.get_or_init(|| {
            let flag = Arc::new(AtomicBool::new(false));
            for signal in [SIGINT, SIGTERM] {
                // Order matters: handlers run in the order of registration. The first one kills the
                // process only if the flag was set by an earlier signal.
                let registered = signal_hook::flag::register_conditional_default(
                    signal,
                    Arc::clone(&flag),
                )
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)));
                if let Err(error) = registered {
                    tracing::warn!(signal, %error, "cannot install a signal handler: the signal will stop the process at once");
                }
            }
            flag
        });
        Arc::clone(flag)
    }
}

#[test]
fn first_signal_only_sets_flag() {
    use std::sync::atomic::Ordering;

    let interrupt = Interrupt::default();
    let flag = interrupt.flag();
    assert!(!flag.load(Ordering::Relaxed));
    signal_hook::low_level::raise(SIGTERM).unwrap();
    assert!(flag.load(Ordering::Relaxed));
    assert!(Arc::ptr_eq(&flag, &interrupt.flag()), "all callers share one flag");
}
