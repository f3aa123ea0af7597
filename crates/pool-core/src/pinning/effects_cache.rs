//! [`SessionEffectsCache`]: the session effects of recent statements.

use std::sync::Arc;

use howdah_sql::{Analyzed, ParameterizedCache, ParameterizedText, SessionEffects};

/// The session effects of recent texts; `None` for texts without any, which are most.
#[derive(Debug)]
pub(crate) struct SessionEffectsCache(ParameterizedCache<Option<Arc<SessionEffects>>>);

/// Approximate size of a worker's cache.
const CACHE_BYTES: usize = 8 << 20;

/// Length of the longest text that is analyzed. Longer ones mostly have long lists of values.
const TEXT_BYTES_MAX: usize = 64 << 10;

impl Default for SessionEffectsCache {
    fn default() -> Self {
        Self(ParameterizedCache::with_capacity(CACHE_BYTES))
    }
}

impl SessionEffectsCache {
    /// Returns the effects of a text on its session; `None` if it has none.
    #[inline]
    pub(crate) fn effects(&mut self, sql: &[u8]) -> Option<Arc<SessionEffects>> {
        if sql.len() > TEXT_BYTES_MAX {
            return Some(Arc::new(SessionEffects::unknown()));
        }
        self.0.get_or_analyze(sql, analyze)
    }
}

#[cfg(feature = "grammar")]
fn analyze(sql: &[u8], _: &ParameterizedText) -> Analyzed<Option<Arc<SessionEffects>>> {
    let effects = howdah_sql::grammar::session_effects(sql);
    let is_exact = effects.depends_on_constants;
    Analyzed { value: (!effects.is_none()).then(|| Arc::new(effects)), is_exact }
}

/// A build without PostgreSQL's grammar cannot analyze statements.
#[cfg(not(feature = "grammar"))]
fn analyze(_: &[u8], _: &ParameterizedText) -> Analyzed<Option<Arc<SessionEffects>>> {
    Analyzed { value: Some(Arc::new(SessionEffects::unknown())), is_exact: false }
}
