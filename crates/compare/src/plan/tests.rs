use proptest::prelude::*;
use serde_json::json;

use super::*;

fn explained(plan: Value) -> Value {
    let mut explained = json!([{ "Plan": null }]);
    explained[0]["Plan"] = plan;
    explained
}

fn seq(relation: &str, rows: u64) -> Value {
    json!({ "Node Type": "Seq Scan", "Relation Name": relation, "Alias": relation, "Plan Rows": rows })
}

fn index(name: &str, relation: &str) -> Value {
    json!({
        "Node Type": "Index Scan", "Index Name": name, "Scan Direction": "Forward",
        "Relation Name": relation, "Alias": relation, "Plan Rows": 1,
    })
}

fn over(kind: &str, children: Vec<Value>) -> Value {
    let mut node = json!({ "Node Type": kind, "Plan Rows": 1 });
    node["Plans"] = Value::Array(children);
    node
}

fn describe(base: Value, run: Value) -> String {
    difference(&explained(base), &explained(run)).unwrap_or_default()
}

#[test]
fn dropped_index_is_reported() {
    assert_eq!(
        describe(index("orders_customer_idx", "orders"), seq("orders", 1)),
        "Index Scan using orders_customer_idx on orders became Seq Scan on orders"
    );
    let (base, run) =
        (explained(index("orders_customer_idx", "orders")), explained(seq("orders", 1)));
    assert_eq!(dropped_indexes(&base, &run), ["orders_customer_idx"]);
    assert!(dropped_indexes(&run, &base).is_empty());
}

#[test]
fn different_index_direction_or_bitmap_is_reported() {
    assert_eq!(
        describe(index("a_idx", "t"), index("b_idx", "t")),
        "Index Scan using a_idx on t became Index Scan using b_idx on t"
    );
    let mut backward = index("a_idx", "t");
    backward["Scan Direction"] = json!("Backward");
    assert_eq!(
        describe(index("a_idx", "t"), backward),
        "Index Scan using a_idx on t became Index Scan Backward using a_idx on t"
    );
    let bitmap = |index: &str| json!({ "Node Type": "Bitmap Index Scan", "Index Name": index });
    let mut heap = seq("t", 1);
    heap["Node Type"] = json!("Bitmap Heap Scan");
    heap["Plans"] = json!([over("BitmapAnd", vec![bitmap("a_idx"), bitmap("b_idx")])]);
    assert_eq!(
        describe(index("a_idx", "t"), heap),
        "Index Scan using a_idx on t became Bitmap Heap Scan using a_idx and b_idx on t"
    );
}

#[test]
fn alias_is_shown_after_its_relation() {
    let with_alias = |mut scan: Value| {
        scan["Alias"] = json!("o");
        scan
    };
    assert_eq!(
        describe(with_alias(index("a_idx", "orders")), with_alias(seq("orders", 1))),
        "Index Scan using a_idx on orders o became Seq Scan on orders o"
    );
}

#[test]
fn different_join_method_is_reported() {
    let join = |kind: &str, method: &str| {
        let inner = over("Hash", vec![seq("b", 10)]);
        let mut join = over(kind, vec![seq("a", 10), inner]);
        join["Join Type"] = json!(method);
        join
    };
    assert_eq!(
        describe(join("Hash Join", "Inner"), join("Nested Loop", "Inner")),
        "Hash Join of a, b became Nested Loop"
    );
    assert_eq!(
        describe(join("Hash Join", "Left"), join("Nested Loop", "Left")),
        "Hash Left Join of a, b became Nested Loop Left Join"
    );
}

#[test]
fn different_join_order_is_reported() {
    let join = |left, right| over("Hash Join", vec![left, right]);
    assert_eq!(
        describe(
            join(join(seq("a", 1), seq("b", 1)), seq("c", 1)),
            join(join(seq("b", 1), seq("c", 1)), seq("a", 1)),
        ),
        "the join order changed"
    );
}

#[test]
fn appearing_and_disappearing_steps_are_reported() {
    let mut sort = over("Sort", vec![seq("t", 1)]);
    sort["Sort Key"] = json!(["t.created DESC", "t.id"]);
    assert_eq!(describe(seq("t", 1), sort.clone()), "a Sort by t.created desc, t.id appeared");
    assert_eq!(describe(sort, seq("t", 1)), "the Sort disappeared");
    let aggregate = |strategy: &str| {
        let mut node = over("Aggregate", vec![seq("t", 1)]);
        node["Strategy"] = json!(strategy);
        node
    };
    assert_eq!(
        describe(aggregate("Hashed"), aggregate("Sorted")),
        "HashAggregate became GroupAggregate"
    );
}

#[test]
fn workers_subplans_and_estimates_are_reported() {
    let gather = |workers: u64| {
        let mut node = over("Gather", vec![seq("t", 1)]);
        node["Workers Planned"] = json!(workers);
        node
    };
    assert_eq!(describe(gather(2), seq("t", 1)), "2 parallel workers became no parallel workers");
    let append = |parts: usize| over("Append", (0..parts).map(|_| seq("t", 1)).collect());
    assert_eq!(describe(append(2), append(12)), "12 subplans are appended instead of 2");
    assert_eq!(
        describe(seq("t", 10), seq("t", 100_000)),
        "100000 rows of t are expected instead of 10"
    );
    assert_eq!(describe(seq("t", 10), seq("t", 50)), "");
}

#[test]
fn most_expensive_scan_is_first_and_sentence_is_bounded() {
    let with_cost = |mut scan: Value, cost: f64| {
        scan["Total Cost"] = json!(cost);
        scan
    };
    let tables = ["a", "b", "c", "d", "e"];
    let base = tables.iter().map(|table| index("i", table)).collect();
    let cost = |table: &str| f64::from(table.as_bytes()[0]);
    let run = tables.iter().map(|table| with_cost(seq(table, 1), cost(table))).collect();
    let describe = describe(over("Append", base), over("Append", run));
    assert!(describe.starts_with("Index Scan using i on e became"), "{describe}");
    assert_eq!(describe.matches(';').count(), 2, "{describe}");
}

#[test]
fn equal_or_invalid_plans_have_no_difference() {
    assert_eq!(describe(seq("t", 5), seq("t", 5)), "");
    for value in
        [json!(null), json!([]), json!([{ "Plan": 3 }]), json!("x"), json!([{ "Plan": {} }])]
    {
        assert_eq!(difference(&value, &explained(seq("t", 1))), None);
        assert_eq!(difference(&explained(seq("t", 1)), &value), None);
    }
}

/// Plans with valid keys in invalid places.
fn any_plan() -> impl Strategy<Value = Value> {
    let kinds = [
        "Seq Scan",
        "Index Scan",
        "Bitmap Heap Scan",
        "Bitmap Index Scan",
        "BitmapAnd",
        "Hash Join",
        "Nested Loop",
        "Sort",
        "Aggregate",
        "Append",
        "Gather",
        "Subquery Scan",
        "",
    ];
    let fields = (prop::sample::select(kinds.to_vec()), "[ab]", "[xy]", -1.0..1e9_f64, any::<u8>());
    let node = fields.prop_map(|(kind, relation, index, rows, flags)| {
        let mut node = json!({ "Node Type": kind, "Plan Rows": rows });
        let optional = [
            ("Alias", json!(relation)),
            ("Relation Name", json!(relation)),
            ("Index Name", json!(index)),
            ("Sort Key", json!([relation, 3])),
            ("Workers Planned", json!(flags)),
            ("Parent Relationship", json!("SubPlan")),
            ("Join Type", json!("Left")),
            ("Strategy", json!("Hashed")),
        ];
        for (bit, (key, value)) in optional.into_iter().enumerate() {
            if flags & (1 << bit) != 0 {
                node[key] = value;
            }
        }
        node
    });
    node.prop_recursive(4, 24, 3, |inner| {
        (inner.clone(), prop::collection::vec(inner, 0..3)).prop_map(|(mut node, children)| {
            node["Plans"] = Value::Array(children);
            node
        })
    })
}

proptest! {
    #[test]
    fn any_two_plans_can_be_compared(base in any_plan(), run in any_plan()) {
        let (base, run) = (explained(base), explained(run));
        prop_assert_eq!(difference(&base, &base), None);
        prop_assert!(dropped_indexes(&base, &base).is_empty());
        if let Some(sentence) = difference(&base, &run) {
            prop_assert!(!sentence.is_empty());
            prop_assert!(difference(&run, &base).is_some(), "{}", sentence);
        }
    }
}

#[test]
fn constants_of_sort_keys_are_replaced() {
    let scan = json!({ "Node Type": "Seq Scan", "Relation Name": "orders", "Alias": "orders" });
    let sorted = json!([{ "Plan": {
        "Node Type": "Sort", "Sort Key": ["((note = 'geheim'::text)) DESC"], "Plans": [scan.clone()]
    } }]);
    let text = difference(&json!([{ "Plan": scan }]), &sorted).unwrap();
    assert!(text.contains("a Sort by") && !text.contains("geheim"), "{text}");
}
