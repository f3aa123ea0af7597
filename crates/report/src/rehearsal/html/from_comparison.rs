//! Converts queries of a comparison to queries of the page.

use howdah_compare::{
    ChangedPart, ErrorChange, Interval, LatencyBins, Measures, Plans, QueryComparison, QueryVerdict,
};

use super::{
    FactorInterval, LatencyHistogram, PageQuery, PageQueryVerdict, PlanPair, QueryErrorCount,
    QueryMeasures,
};

impl PageQuery {
    /// Converts a query. The caller adds what the comparison does not have, such as runs and
    /// causes.
    ///
    /// Error messages are copied unchanged, so the caller must remove them first unless values were
    /// requested.
    pub fn from_comparison(query: &QueryComparison) -> Self {
        Self {
            fingerprint: query.fingerprint.to_string(),
            text: query.text.query.clone(),
            verdict: query.verdict.into(),
            is_tail_only: query.verdict.part() == Some(ChangedPart::Tail),
            base: query.base.map(QueryMeasures::from),
            change: query.run.map(QueryMeasures::from),
            runs: Vec::new(),
            factor: query.change.map(|change| change.factor.into()),
            mean_factor: query.mean_change.map(FactorInterval::from),
            detectable: query.detectable,
            impact_us: query.impact_us,
            latencies: query.latencies.as_ref().map(LatencyHistogram::from),
            errors: query.errors.iter().map(QueryErrorCount::from).collect(),
            plan_change: query.plan_change.clone(),
            plans: query.plans.as_ref().map(PlanPair::from),
            plan_failure: None,
            causes: Vec::new(),
            example: None,
        }
    }
}

impl From<QueryVerdict> for PageQueryVerdict {
    fn from(verdict: QueryVerdict) -> Self {
        match verdict {
            QueryVerdict::Slower(_) => Self::Slower,
            QueryVerdict::Faster(_) => Self::Faster,
            QueryVerdict::NoChange => Self::NoChange,
            QueryVerdict::Undecided => Self::Undecided,
            QueryVerdict::TooFew => Self::TooFew,
            QueryVerdict::OnlyInBase => Self::OnlyInBase,
            QueryVerdict::OnlyInRun => Self::OnlyInChange,
            // A verdict that is unknown here must not claim anything.
            _ => Self::Undecided,
        }
    }
}

impl From<Measures> for QueryMeasures {
    fn from(measures: Measures) -> Self {
        Self {
            calls: measures.calls,
            errors: measures.errors,
            mean_us: measures.mean_us,
            p50_us: measures.p50_us as f64,
            p90_us: measures.p90_us as f64,
            p95_us: measures.p95_us as f64,
            p99_us: measures.p99_us as f64,
            max_us: measures.max_us as f64,
            total_us: measures.total_us as f64,
            rows_mean: measures.rows_mean,
        }
    }
}

impl From<&LatencyBins> for LatencyHistogram {
    fn from(bins: &LatencyBins) -> Self {
        Self { edges_us: bins.edges_us.clone(), base: bins.base.clone(), change: bins.run.clone() }
    }
}

impl From<&Plans> for PlanPair {
    fn from(plans: &Plans) -> Self {
        Self { base: plans.base.clone(), change: plans.run.clone() }
    }
}

impl From<Interval> for FactorInterval {
    fn from(interval: Interval) -> Self {
        Self { estimate: interval.estimate, low: interval.low, high: interval.high }
    }
}

impl From<&ErrorChange> for QueryErrorCount {
    fn from(change: &ErrorChange) -> Self {
        Self {
            sqlstate: change.sqlstate.map(|code| code.to_string()).unwrap_or_default(),
            message: change.message.clone(),
            base: change.base,
            change: change.run,
        }
    }
}

#[test]
fn query_has_measures_factor_and_errors_of_the_comparison() {
    let (comparison, _) = crate::table::tests::sample_comparison();
    let query = |fingerprint: u64| {
        let mut queries = comparison.queries.iter();
        let query = queries.find(|query| query.fingerprint.0 == fingerprint).unwrap();
        PageQuery::from_comparison(query)
    };
    let slower = query(1);
    assert_eq!((slower.verdict, slower.is_tail_only), (PageQueryVerdict::Slower, false));
    let factor = slower.verdict_factor().unwrap();
    assert!(factor.low < factor.estimate && factor.estimate < factor.high && factor.low > 10.0);
    assert_eq!(slower.change.unwrap().calls, 200);
    assert!(slower.plan_change.unwrap().starts_with("Index Scan"));
    let failing = query(3);
    assert_eq!((failing.errors[0].sqlstate.as_str(), failing.errors[0].base), ("23505", 0));
    assert_eq!(query(5).verdict, PageQueryVerdict::OnlyInChange);
}
