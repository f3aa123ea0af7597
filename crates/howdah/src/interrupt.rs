//! Ctrl-C and SIGTERM: the first requests a clean stop, the second stops immediately.

use std::sync::{Arc, OnceLock, atomic::AtomicBool};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

/// The flag that a signal sets. Signals keep their default action until the flag is requested, so
/// that Ctrl-C still kills a command that never checks it.
#[derive(Debug, Default)]
pub(crate) struct Interrupt(OnceLock<Arc<AtomicBool>>);

impl Interrupt {
    /// Returns the flag, and installs the signal handlers on the first call.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        let flag = self.0.get_or_init(|| {
            let flag = Arc::<AtomicBool>::default();
            let is_second = Arc::<AtomicBool>::default();
            for signal in [SIGINT, SIGTERM] {
                // Handlers run in the order of registration. The flag comes first, so that a signal
                // that arrives meanwhile is not lost.
                let registered = flag::register(signal, Arc::clone(&flag))
                    .and_then(|_| {
                        flag::register_conditional_default(signal, Arc::clone(&is_second))
                    })
                    .and_then(|_| flag::register(signal, Arc::clone(&is_second)));
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
