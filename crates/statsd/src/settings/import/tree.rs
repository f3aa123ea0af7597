//! Reads other syntaxes into the tree of the literals' parser, with the line of each value.

use std::path::Path;

use howdah_settings::{Diagnostic, SettingsErrors, SettingsText};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    settings::literal::{Literal, LiteralEntry, LiteralNode},
    yaml::{self, YamlNode, YamlValue},
};

/// Reads a YAML document. Scalars are texts; `~`, `null` and the empty text are [`Literal::Null`].
pub(super) fn from_yaml(text: &str, file: &Path) -> Result<LiteralNode, SettingsErrors> {
    match yaml::parse(text) {
        Ok(Some(node)) => Ok(yaml_node(node)),
        Ok(None) => Ok(LiteralNode { line: 1, value: Literal::Object(Vec::new()) }),
        Err((line, problem)) => {
            Err(SettingsErrors(vec![Diagnostic::new(file, line, "", problem.to_string())]))
        }
    }
}

fn yaml_node(node: YamlNode) -> LiteralNode {
    let value = match node.value {
        YamlValue::Scalar(text) if matches!(text.as_str(), "" | "~" | "null") => Literal::Null,
        YamlValue::Scalar(text) => Literal::Text(text),
        YamlValue::List(items) => Literal::List(items.into_iter().map(yaml_node).collect()),
        YamlValue::Map(pairs) => {
            let entry = |(key, node)| {
                let value = yaml_node(node);
                LiteralEntry { key, line: value.line, value }
            };
            Literal::Object(pairs.into_iter().map(entry).collect())
        }
    };
    LiteralNode { line: node.line, value }
}

/// Reads a TOML document.
pub(super) fn from_toml(text: &str, file: &Path) -> Result<LiteralNode, SettingsErrors> {
    let text = SettingsText::new(text, file);
    let table = text.parse()?;
    Ok(LiteralNode { line: 1, value: toml_table(&table, &text) })
}

fn toml_table(table: &DeTable<'_>, text: &SettingsText<'_>) -> Literal {
    let entries = table.iter().map(|(key, value)| LiteralEntry {
        key: key.get_ref().to_string(),
        line: text.line(key.span().start),
        value: toml_node(value, text),
    });
    Literal::Object(entries.collect())
}

fn toml_node(node: &Spanned<DeValue<'_>>, text: &SettingsText<'_>) -> LiteralNode {
    let value = match node.get_ref() {
        DeValue::String(value) => Literal::Text(value.to_string()),
        DeValue::Boolean(value) => Literal::Bool(*value),
        DeValue::Integer(value) => {
            let number = i64::from_str_radix(value.as_str(), value.radix());
            Literal::Number(number.map_or(f64::NAN, |number| number as f64))
        }
        DeValue::Float(value) => Literal::Number(value.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Datetime(value) => Literal::Text(value.to_string()),
        DeValue::Array(items) => {
            Literal::List(items.iter().map(|item| toml_node(item, text)).collect())
        }
        DeValue::Table(table) => toml_table(table, text),
    };
    LiteralNode { line: text.line(node.span().start), value }
}

/// Reads an INI file: an object of sections, whose values are texts. Keys before the first section
/// are in one without a name.
pub(super) fn from_ini(text: &str, file: &Path) -> Result<LiteralNode, SettingsErrors> {
    let mut sections: Vec<(String, usize, Vec<LiteralEntry>)> = vec![(String::new(), 1, vec![])];
    let mut errors = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim();
        // A semicolon after a space starts a comment, as in the parser of statsite.
        let content = content.split(" ;").next().unwrap_or_default().trim_end();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        let header = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(name) = header {
            sections.push((name.trim().to_owned(), line, Vec::new()));
        } else if let (Some((key, value)), Some((_, _, entries))) =
            (content.split_once(['=', ':']), sections.last_mut())
        {
            let value = LiteralNode { line, value: Literal::Text(value.trim().to_owned()) };
            entries.push(LiteralEntry { key: key.trim().to_owned(), line, value });
        } else if errors.len() < ERRORS_MAX {
            let text = "must be [section], key = value or a comment";
            errors.push(Diagnostic::new(file, line, "", text));
        }
    }
    if !errors.is_empty() {
        return Err(SettingsErrors(errors));
    }
    let section = |(key, line, entries)| {
        let value = LiteralNode { line, value: Literal::Object(entries) };
        LiteralEntry { key, line, value }
    };
    let sections = sections.into_iter().map(section).collect();
    Ok(LiteralNode { line: 1, value: Literal::Object(sections) })
}

/// Maximum number of reported lines that are not INI.
const ERRORS_MAX: usize = 20;
