//! [`Texts`]: statements that were prepared lately, each with one text for all who prepare it.
//!
//! Applications send the same few statements again and again, many with a Parse for each execution. Who finds
//! one here need not look it through for secrets, nor copy it.

use std::sync::Arc;

use howdah_traffic::Hashed;
use howdah_wire::frontend::Parse;

use crate::session::Prepared;

/// Places, of which a text has one. What comes to lie in another's place takes it over.
const PLACES: usize = 1024;

/// Longer texts have no place, so that all of them are 4 MB at most.
const TEXT_BYTES_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct Texts(Vec<Option<Arc<Prepared>>>);

impl Default for Texts {
    fn default() -> Self {
        Self(vec![None; PLACES])
    }
}

impl Texts {
    /// What a Parse prepares.
    pub(crate) fn prepared(&mut self, parse: &Parse<'_>) -> Arc<Prepared> {
        let parsed = || Arc::new(Prepared::parsed(parse));
        if parse.sql.len() > TEXT_BYTES_MAX {
            return parsed();
        }
        let hash = Hashed::new(parse.sql).hash() as usize;
        let Some(place) = self.0.get_mut(hash % PLACES) else { return parsed() };
        // A text that was changed because of a secret in it is equal to none that has one, and what has
        // none was not changed.
        match place {
            Some(prepared) if prepared.is_of(parse) => Arc::clone(prepared),
            _ => Arc::clone(place.insert(parsed())),
        }
    }
}
