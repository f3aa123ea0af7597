//! Finds the differences between the servers that may explain the change of a query: differences of
//! tables that the query's text names.

use std::collections::{BTreeMap, BTreeSet};

use howdah_compare::Comparison;
use howdah_report::rehearsal::{BothSides, ServerDifference, ServerFacts};
use howdah_sql::Fingerprint;

/// For each changed query, returns the positions of the differences that concern its tables.
///
/// Names are compared as whole words and without schemas, which texts rarely contain. A view stands
/// for the tables that it reads. A table that is used only in a function is not found.
pub(crate) fn find_reasons(
    comparison: &Comparison,
    differences: &[ServerDifference],
    servers: &BothSides<ServerFacts>,
) -> BTreeMap<Fingerprint, Vec<usize>> {
    let mut reasons = BTreeMap::new();
    for query in comparison.slower().chain(comparison.faster()) {
        let mut names = identifiers(&query.text.query);
        let views = servers.base.views.iter().chain(&servers.change.views);
        let read =
            views.filter(|view| names.contains(&view.name.name)).flat_map(|view| &view.tables);
        let read: Vec<String> = read.map(|table| table.name.clone()).collect();
        names.extend(read);
        let concerns = |difference: &ServerDifference| {
            difference.table().is_some_and(|table| names.contains(table.name.as_str()))
        };
        let positions: Vec<usize> = (0..)
            .zip(differences)
            .filter(|(_, difference)| concerns(difference))
            .map(|(position, _)| position)
            .collect();
        if !positions.is_empty() {
            reasons.insert(query.fingerprint, positions);
        }
    }
    reasons
}

/// Returns the words of a normalized text, quoted words without their quotes. Keywords are
/// included, which is harmless: a table with the name of a keyword must be quoted.
fn identifiers(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let mut name = String::new();
        if char == '"' {
            while let Some(char) = chars.next() {
                // A doubled quote stands for a quote in the name.
                if char == '"' && chars.next_if_eq(&'"').is_none() {
                    break;
                }
                name.push(char);
            }
        } else if is_identifier(char) {
            // PostgreSQL folds unquoted names to lower case.
            name.extend(char.to_lowercase());
            while let Some(char) = chars.next_if(|char| is_identifier(*char)) {
                name.extend(char.to_lowercase());
            }
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
    names
}

fn is_identifier(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '$')
}

#[test]
fn identifiers_are_whole_words() {
    let names = identifiers("select * from Shop.orders o, \"Line \"\"Items\" where id = $1 -- ?");
    for name in ["shop", "orders", "o", "Line \"Items", "id"] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
    for name in ["order", "items", "Line"] {
        assert!(!names.contains(name), "{name}: {names:?}");
    }
    assert!(identifiers("\"unfinished").contains("unfinished"));
}
