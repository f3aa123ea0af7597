//! `howdah demo`: the whole line, from a log to the name of the statement that got slower.

use serde_json::Value;

use crate::{howdah, text};

#[test]
fn the_statement_that_lost_its_index_is_named_with_the_reason() {
    let search = howdah_lab::Search::new().fetch(false);
    if howdah_lab::or_say_why_not("the demo", search.find()).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let done =
        howdah(folder.path()).args(["demo", "--duration", "5s", "--output", "seen"]).assert();
    let output = done.get_output();
    let (found, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{found}{said}");
    let slower = found.lines().find(|line| line.starts_with("slower: select id, created_at"));
    let slower = slower.unwrap_or_else(|| panic!("{found}"));
    assert!(slower.contains("became Seq Scan on orders"), "{slower}");
    assert!(
        slower.contains("there is no index orders_customer_id_created_at_idx any more"),
        "{slower}"
    );

    let file = std::fs::read(folder.path().join("seen/compare.json")).unwrap();
    let document: Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(document["format"], "howdah-comparison");
    let worst = &document["queries"][0];
    assert_eq!(worst["verdict"], "slower", "{worst}");
    let base = &document["base"];
    assert_eq!(base["errors"], 0, "{base}");
    assert_eq!(base["calls"], document["run"]["calls"], "both runs played all of it");
}
