//! Which differences of the servers may explain the change of a query: those of tables that its
//! text names.

use std::collections::{BTreeMap, BTreeSet};

use howdah_compare::Comparison;
use howdah_report::rehearsal::ServerDifference;
use howdah_sql::Fingerprint;

/// For each changed query, the positions of the differences that concern tables it names.
///
/// Names are compared without their schemas, because texts rarely have them, and as whole words. A
/// table used only through a view or a function is not found.
pub(crate) fn find_reasons(
    comparison: &Comparison,
    differences: &[ServerDifference],
) -> BTreeMap<Fingerprint, Vec<usize>> {
    let mut reasons = BTreeMap::new();
    for query in comparison.slower().chain(comparison.faster()) {
        let names = identifiers(&query.text.query);
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

/// The words of a normalized text, quoted ones without their quotes. Keywords are among them, which
/// is harmless: a table of that name must be quoted.
fn identifiers(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let mut name = String::new();
        if char == '"' {
            while let Some(char) = chars.next() {
                // A doubled quote stands for one.
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
