//! Comparison with output recorded from Node 20.

use super::*;

/// Reads `node.json`, which contains values with the output of `util.inspect(value)` and
/// `util.inspect(value, {depth: 5, colors: true})` from Node 20.20. A value is `{"N": text}` for a
/// number, `{"T": text}`, `{"A": values}` or `{"O": [[key, value]]}`.
fn recorded() -> Vec<serde_json::Value> {
    serde_json::from_str(include_str!("node.json")).unwrap()
}

fn decode(value: &serde_json::Value) -> JsValue {
    let (kind, inner) = value.as_object().unwrap().iter().next().unwrap();
    let list = |inner: &serde_json::Value| inner.as_array().unwrap().clone();
    match kind.as_str() {
        "N" => JsValue::Number(inner.as_str().unwrap().parse().unwrap()),
        "T" => JsValue::Text(inner.as_str().unwrap().into()),
        "A" => JsValue::Array(list(inner).iter().map(decode).collect()),
        _ => JsValue::Object(
            list(inner)
                .iter()
                .map(|entry| (entry[0].as_str().unwrap().into(), decode(&entry[1])))
                .collect(),
        ),
    }
}

#[test]
fn recorded_values_match_node_output() {
    let cases = recorded();
    assert!(cases.len() > 20);
    for case in cases {
        let value = decode(&case["value"]);
        assert_eq!(inspect(&value, InspectOptions::default()), case["plain"].as_str().unwrap());
        let deep = InspectOptions { depth: 5, colors: true };
        assert_eq!(inspect(&value, deep), case["deep"].as_str().unwrap());
    }
}
