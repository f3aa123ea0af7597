//! The part of a login that costs processor time: making SCRAM keys of a password.

use std::{fmt, num::NonZeroU32};

use howdah_wire::{
    Secret,
    auth::scram::{ClientKeys, ScramKeys},
};

/// Keys to be made of a password. 4,096 iterations take about a millisecond, in which a thread that
/// moves bytes would move a hundred transactions: do it on another.
pub struct Work {
    pub(super) password: Secret,
    pub(super) salt: Vec<u8>,
    pub(super) iterations: NonZeroU32,
    /// Where the keys are kept for the next login.
    pub(super) keys: ClientKeys,
}

/// Keys that were made.
pub struct DerivedKeys(pub(super) ScramKeys);

impl Work {
    /// Does it.
    pub fn run(self) -> DerivedKeys {
        DerivedKeys(self.keys.of(&self.password, &self.salt, self.iterations))
    }
}

impl fmt::Debug for Work {
    /// Neither password nor salt.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

impl fmt::Debug for DerivedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Derived(…)")
    }
}
