//! `howdah demo`: all steps, from a log to the slower query.

use serde_json::Value;

use crate::{howdah, text};

#[test]
fn demo_finds_query_without_index_and_explains_it() {
    let search = howdah_lab::BinariesSearch::new().fetch(false);
    if howdah_lab::skip_without_postgres("the demo", search.find()).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let done =
        howdah(folder.path()).args(["demo", "--duration", "5s", "--output", "seen"]).assert();
    let output = done.get_output();
    let (found, messages) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{found}{messages}");
    let slower = found.lines().find(|line| line.starts_with("slower: select id, created_at"));
    let slower = slower.unwrap_or_else(|| panic!("{found}"));
    assert!(slower.contains("became Seq Scan on orders"), "{slower}");
    assert!(
        slower.contains("index orders_customer_id_created_at_idx no longer exists"),
        "{slower}"
    );

    let file = std::fs::read(folder.path().join("seen/compare.json")).unwrap();
    let document: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(document["format"], "howdah-comparison");
    let worst = &document["queries"][0];
    assert_eq!(worst["verdict"], "slower", "{worst}");
    let base = &document["base"];
    assert_eq!(base["errors"], 0, "{base}");
    assert_eq!(base["calls"], document["run"]["calls"], "both runs replayed all statements");
}
