//! The part of a login that costs CPU time: deriving SCRAM keys from a password.

use std::{fmt, num::NonZeroU32};

use howdah_wire::{
    Secret,
    auth::scram::{ClientKeys, ScramKeys},
};

/// A derivation of SCRAM keys from a password. 4,096 iterations take about a millisecond, in which
/// a worker would process a hundred transactions: run it on another thread.
pub struct KeyDerivation {
    pub(super) password: Secret,
    pub(super) salt: Vec<u8>,
    pub(super) iterations: NonZeroU32,
    /// The cache for the derived keys.
    pub(super) keys: ClientKeys,
}

/// The result of a [`KeyDerivation`], to be returned to the handshake that requested it.
pub struct DerivedKeys(pub(super) ScramKeys);

impl KeyDerivation {
    /// Runs PBKDF2, unless the keys are cached by now.
    pub fn run(self) -> DerivedKeys {
        DerivedKeys(self.keys.get_or_compute(&self.password, &self.salt, self.iterations))
    }
}

impl fmt::Debug for KeyDerivation {
    /// Omits password and salt.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyDerivation")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for DerivedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivedKeys(…)")
    }
}
