//! [`PlanCache`]: the plans of recent texts.

use std::sync::Arc;

use howdah_sql::{Analyzed, ParameterizedCache, ParameterizedText};

#[cfg(feature = "grammar")]
use crate::analysis::plan;
use crate::{plan::RoutePlan, settings::RouteSettings};

/// Returns the plan of a text in a build without PostgreSQL's grammar, which cannot analyze
/// statements.
#[cfg(not(feature = "grammar"))]
fn plan(_: &[u8], _: &ParameterizedText, _: &RouteSettings) -> RoutePlan {
    RoutePlan::unreadable(crate::refusal::NoShardKey::NoGrammar)
}

/// The plans of recent texts.
#[derive(Debug)]
pub(crate) struct PlanCache(ParameterizedCache<Arc<RoutePlan>>);

impl PlanCache {
    /// Creates a cache of up to about `bytes` bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(ParameterizedCache::with_capacity(bytes))
    }

    /// Returns the plan of a text. If the plan refers to constants, [`Self::parameterized`] has
    /// their positions in this text afterwards.
    pub(crate) fn plan(&mut self, sql: &[u8], settings: &RouteSettings) -> Arc<RoutePlan> {
        self.0.get_or_analyze(sql, |sql, parameterized| {
            let plan = plan(sql, parameterized, settings);
            Analyzed { is_exact: plan.is_exact, value: Arc::new(plan) }
        })
    }

    /// Returns the parameterized text that the last call of [`Self::plan`] has read; empty if the
    /// plan was found by the exact text.
    pub(crate) fn parameterized(&self) -> &ParameterizedText {
        self.0.parameterized()
    }
}

#[test]
fn plans_of_cached_texts_refer_to_their_constants() {
    let settings = RouteSettings::default();
    let mut cache = PlanCache::with_capacity(100_000);
    for id in 0..3 {
        let plan = cache.plan(format!("select c from t where a = {id}").as_bytes(), &settings);
        assert_eq!(plan.primary, None);
        assert_eq!(cache.parameterized().constants().len(), 1);
    }
    for sql in [&b"delete from t where a = 1"[..], b"delete from t"] {
        assert!(cache.plan(sql, &settings).primary.is_some());
    }
}
