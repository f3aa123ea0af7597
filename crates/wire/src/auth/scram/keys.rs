//! Keys that a client derives from a password and a salt, cached for its next login.
//!
//! The iterations make guessing expensive, but a program that logs in a thousand times with one
//! password pays for them a thousand times. The result is the same each time, because a server
//! keeps the salt of a role until its password changes. Source: RFC 5802, section 5.1, which allows
//! clients to cache exactly this.

use std::{collections::HashMap, fmt, num::NonZeroU32, sync::Arc};

use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::{hmac_sha256, salted_password, sha256};
use crate::Secret;

/// Maximum number of cached keys. Beyond it the cache is cleared: so many roles are rare, and a
/// server that sends a new salt each time must not exhaust memory.
const COUNT_MAX: usize = 4_096;

/// Keys that clients have computed, by password, salt and iterations. Clones share the keys, also
/// across threads.
///
/// For a server that stores the same salt and iterations, the keys are equivalent to the password.
/// They are overwritten when the last clone is dropped, and `Debug` does not show them.
#[derive(Clone, Default)]
pub struct ClientKeys(Arc<Mutex<HashMap<[u8; 32], ScramKeys>>>);

/// `ClientKey` and `ServerKey` of RFC 5802, with their salt and iterations. Equivalent to the
/// password for a server that stores this salt and these iterations.
#[derive(Clone)]
pub struct ScramKeys {
    pub(super) salt: Box<[u8]>,
    pub(super) iterations: NonZeroU32,
    pub(super) client_key: Zeroizing<[u8; 32]>,
    pub(super) server_key: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScramKeys(…)")
    }
}

impl ClientKeys {
    /// Returns the number of cached keys.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether no key is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the keys of a password, if they are cached. Costs one hash.
    pub fn get(&self, password: &Secret, salt: &[u8], iterations: NonZeroU32) -> Option<ScramKeys> {
        let name = name(password, salt, iterations);
        self.0.lock().get(&name).cloned()
    }

    /// Returns the keys of a password, computed and cached if necessary. Computing costs the
    /// iterations: 4,096 take about a millisecond.
    pub fn get_or_compute(
        &self,
        password: &Secret,
        salt: &[u8],
        iterations: NonZeroU32,
    ) -> ScramKeys {
        if let Some(keys) = self.get(password, salt, iterations) {
            return keys;
        }
        // Computed without the lock: another thread that needs the same keys at this time computes
        // them as well, and one that needs others does not wait.
        let keys = ScramKeys::new(password, salt, iterations);
        self.insert(name(password, salt, iterations), keys.clone());
        keys
    }

    fn insert(&self, name: [u8; 32], keys: ScramKeys) {
        let mut cache = self.0.lock();
        if cache.len() >= COUNT_MAX {
            cache.clear();
        }
        cache.insert(name, keys);
    }
}

impl ScramKeys {
    /// Assembles keys from their parts, for keys that another process of the same user hands over.
    pub fn from_parts(
        salt: &[u8],
        iterations: NonZeroU32,
        client_key: [u8; 32],
        server_key: [u8; 32],
    ) -> Self {
        let (client_key, server_key) = (Zeroizing::new(client_key), Zeroizing::new(server_key));
        Self { salt: salt.into(), iterations, client_key, server_key }
    }

    /// Returns the salt that the keys were derived with.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Returns the number of iterations that the keys were derived with.
    pub fn iterations(&self) -> NonZeroU32 {
        self.iterations
    }

    /// Returns `ClientKey` of RFC 5802. A secret: it allows logins to servers that store this salt
    /// and number of iterations.
    pub fn client_key(&self) -> &[u8; 32] {
        &self.client_key
    }

    /// Returns `ServerKey` of RFC 5802. A secret: it allows impersonating the server.
    pub fn server_key(&self) -> &[u8; 32] {
        &self.server_key
    }

    fn new(password: &Secret, salt: &[u8], iterations: NonZeroU32) -> Self {
        let salted = salted_password(password.expose(), salt, iterations);
        Self {
            salt: salt.into(),
            iterations,
            client_key: Zeroizing::new(hmac_sha256(&*salted, b"Client Key")),
            server_key: Zeroizing::new(hmac_sha256(&*salted, b"Server Key")),
        }
    }
}

/// Returns a hash of password, salt and iterations. Fields of variable length are preceded by their
/// length, so that different inputs cannot collide.
fn name(password: &Secret, salt: &[u8], iterations: NonZeroU32) -> [u8; 32] {
    let mut text = Zeroizing::new(Vec::new());
    text.extend_from_slice(&iterations.get().to_be_bytes());
    for part in [password.expose(), salt] {
        text.extend_from_slice(&(part.len() as u64).to_be_bytes());
        text.extend_from_slice(part);
    }
    sha256(&text)
}

/// Shows only the number of keys.
impl fmt::Debug for ClientKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKeys({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: NonZeroU32 = NonZeroU32::new(2).expect("it is not zero");

    #[test]
    fn cached_keys_are_not_recomputed() {
        let keys = ClientKeys::default();
        let password = Secret::from("sesame");
        let computed = keys.get_or_compute(&password, b"salt", COST);
        assert_eq!(keys.len(), 1);
        // The cached, wrong keys are returned, so they were not recomputed.
        let other = ScramKeys::new(&Secret::from("other"), b"salt", COST);
        keys.insert(name(&password, b"salt", COST), other.clone());
        let found = keys.clone().get_or_compute(&password, b"salt", COST);
        assert_eq!(found.client_key, other.client_key);
        assert_ne!(found.client_key, computed.client_key);
        assert_eq!(keys.len(), 1);
    }

    #[test]
    fn keys_depend_on_password_salt_and_iterations() {
        let keys = ClientKeys::default();
        let more = COST.saturating_add(1);
        let of = |password: &str, salt: &[u8], cost| {
            keys.get_or_compute(&Secret::from(password), salt, cost)
        };
        let first = of("ab", b"c", COST);
        for other in [of("a", b"bc", COST), of("ab", b"d", COST), of("ab", b"c", more)] {
            assert_ne!(first.client_key, other.client_key);
        }
        assert_eq!(keys.len(), 4);
        assert_eq!(format!("{keys:?}"), "ClientKeys(4)");
    }

    #[test]
    fn endless_salts_do_not_exhaust_memory() {
        let keys = ClientKeys::default();
        let one = NonZeroU32::MIN;
        for salt in 0..COUNT_MAX + 2 {
            keys.get_or_compute(&Secret::from("x"), &salt.to_be_bytes(), one);
        }
        assert_eq!(keys.len(), 2);
    }
}
