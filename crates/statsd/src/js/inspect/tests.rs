//! Against what Node 20 wrote.

use super::*;

/// `node.json` holds values with what `util.inspect(value)` and
/// `util.inspect(value, {depth: 5, colors: true})` of Node 20.20 made of them. A value is `{"N": text}`
/// for a number, `{"T": text}`, `{"A": values}` or `{"O": [[key, value]]}`.
fn recorded() -> Vec<serde_json::Value> {
    serde_json::from_str(include_str!("node.json")).unwrap()
}

fn decode(value: &serde_json::Value) -> Value {
    let (kind, inner) = value.as_object().unwrap().iter().next().unwrap();
    let list = |inner: &serde_json::Value| inner.as_array().unwrap().clone();
    match kind.as_str() {
        "N" => Value::Number(inner.as_str().unwrap().parse().unwrap()),
        "T" => Value::Text(inner.as_str().unwrap().into()),
        "A" => Value::Array(list(inner).iter().map(decode).collect()),
        _ => Value::Object(
            list(inner)
                .iter()
                .map(|entry| (entry[0].as_str().unwrap().into(), decode(&entry[1])))
                .collect(),
        ),
    }
}

#[test]
fn every_recorded_value_looks_as_node_shows_it() {
    let cases = recorded();
    assert!(cases.len() > 20);
    for case in cases {
        let value = decode(&case["value"]);
        assert_eq!(inspect(&value, Inspect::default()), case["plain"].as_str().unwrap());
        let deep = Inspect { depth: 5, colors: true };
        assert_eq!(inspect(&value, deep), case["deep"].as_str().unwrap());
    }
}
