//! Ctrl-C and SIGTERM: the first asks, the second stops at once.

use std::sync::{Arc, OnceLock, atomic::AtomicBool};

use signal_hook::consts::{SIGINT, SIGTERM};

/// The flag that a signal sets. Signals keep their default meaning until somebody asks for it:
/// a command that never looks must die from Ctrl-C as any program does.
#[derive(Debug, Default)]
pub(crate) struct Interrupt(OnceLock<Arc<AtomicBool>>);

impl Interrupt {
    /// From now on a signal sets the flag.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        let flag = self.0.get_or_init(|| {
            let flag = Arc::new(AtomicBool::new(false));
            for signal in [SIGINT, SIGTERM] {
                // Order matters: handlers run as registered, and only a flag that an earlier
                // signal has set makes the default action, death by that signal, happen.
                let registered = signal_hook::flag::register_conditional_default(
                    signal,
                    Arc::clone(&flag),
                )
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)));
                if let Err(error) = registered {
                    tracing::warn!(signal, %error, "cannot catch a signal; it will stop us at once");
                }
            }
            flag
        });
        Arc::clone(flag)
    }
}

#[test]
fn the_first_signal_only_sets_the_flag() {
    use std::sync::atomic::Ordering;

    let interrupt = Interrupt::default();
    let flag = interrupt.flag();
    assert!(!flag.load(Ordering::Relaxed));
    signal_hook::low_level::raise(SIGTERM).unwrap();
    assert!(flag.load(Ordering::Relaxed));
    assert!(Arc::ptr_eq(&flag, &interrupt.flag()), "everybody gets the same flag");
}
