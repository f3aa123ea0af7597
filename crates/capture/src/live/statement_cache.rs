//! [`StatementCache`]: recently prepared statements, shared by all sessions that prepare them.
//!
//! Applications send the same few statements again and again, many with a Parse for each execution.
//! A cached text is neither searched for secrets nor copied again.

use std::sync::Arc;

use howdah_traffic::Hashed;
use howdah_wire::frontend::Parse;

use crate::live::parsed_statement::ParsedStatement;

/// Number of cache entries. Texts that map to the same entry replace each other.
const CACHE_ENTRIES: usize = 1024;

/// Maximum length of a cached text, so that all of them together take at most 4 MB.
const TEXT_BYTES_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct StatementCache(Vec<Option<Arc<ParsedStatement>>>);

impl Default for StatementCache {
    fn default() -> Self {
        Self(vec![None; CACHE_ENTRIES])
    }
}

impl StatementCache {
    /// Returns the statement of a Parse message, from the cache if possible.
    pub(crate) fn get_or_parse(&mut self, parse: &Parse<'_>) -> Arc<ParsedStatement> {
        let parsed = || Arc::new(ParsedStatement::from_parse(parse));
        if parse.sql.len() > TEXT_BYTES_MAX {
            return parsed();
        }
        let hash = Hashed::new(parse.sql).hash() as usize;
        let Some(entry) = self.0.get_mut(hash % CACHE_ENTRIES) else { return parsed() };
        // Comparing is safe: an entry whose secrets were removed never equals a text with secrets,
        // and a text without secrets is stored unchanged.
        match entry {
            Some(prepared) if prepared.matches(parse) => Arc::clone(prepared),
            _ => Arc::clone(entry.insert(parsed())),
        }
    }
}
