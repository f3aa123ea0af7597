//! [`DigestCache`]: a cache of the session identity digests that event hashes contain, so that each
//! digest is computed once for many events.

use std::sync::Arc;

use howdah_traffic::{Event, IdentityDigest};

/// Number of cache entries; sessions that map to the same entry replace each other.
const CACHE_ENTRIES: usize = 1024;

#[derive(Debug)]
pub(crate) struct DigestCache(Vec<Option<CachedDigest>>);

/// A cached digest. It keeps the session's names alive, so that their addresses identify them.
#[derive(Clone, Debug)]
struct CachedDigest {
    names: [Arc<str>; 4],
    digest: IdentityDigest,
}

impl Default for DigestCache {
    fn default() -> Self {
        Self(vec![None; CACHE_ENTRIES])
    }
}

impl DigestCache {
    /// Returns the digest of an event's identity, from the cache if possible.
    pub(crate) fn digest(&mut self, event: &Event) -> IdentityDigest {
        let names = [&event.session, &event.user, &event.database, &event.application];
        let digest = || {
            let [session, user, database, application] = names;
            IdentityDigest::new(session, user, database, application)
        };
        // Addresses of small allocations are multiples of 16, and those of sessions are further
        // apart.
        let address = event.session.as_ptr() as usize;
        let Some(entry) = self.0.get_mut((address >> 6) % CACHE_ENTRIES) else { return digest() };
        let is_match =
            |cached: &CachedDigest| cached.names.iter().zip(names).all(|(a, b)| Arc::ptr_eq(a, b));
        match entry {
            Some(cached) if is_match(cached) => cached.digest,
            _ => {
                let names = names.map(Arc::clone);
                entry.insert(CachedDigest { names, digest: digest() }).digest
            }
        }
    }
}
