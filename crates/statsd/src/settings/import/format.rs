//! Recognizes the format of a settings file by its content and, where that is ambiguous, by its
//! name.

use std::path::Path;

use howdah_settings::{Diagnostic, SettingsErrors, SettingsText};

use super::{datadog, exporter, gostatsd, statsite, telegraf, tree};
use crate::settings::{
    literal::{self, ExpressionContext, Literal, LiteralNode},
    parsed::SettingsFormat,
};

/// Returns the format of a settings file.
///
/// # Errors
///
/// The file has none of the formats, or has a syntax error that hides its format.
pub(crate) fn detect(
    text: &str,
    file: &Path,
    context: ExpressionContext<'_>,
) -> Result<SettingsFormat, SettingsErrors> {
    if exporter::is_command_line(text) {
        return Ok(SettingsFormat::StatsdExporter);
    }
    if literal::is_literal(text) {
        let tree = literal::parse(text, context);
        let is_gostatsd =
            tree.is_ok_and(|tree| keys(&tree).iter().any(|key| gostatsd::is_json_key(key)));
        let format = if is_gostatsd { SettingsFormat::Gostatsd } else { SettingsFormat::Literal };
        return Ok(format);
    }
    if statsite::is_statsite(text) {
        return Ok(SettingsFormat::Statsite);
    }
    let toml = SettingsText::new(text, file).parse();
    if let Ok(table) = &toml {
        let keys: Vec<&str> = table.keys().map(|key| key.get_ref().as_ref()).collect();
        if let Some(format) = toml_format(&keys) {
            return Ok(format);
        }
    }
    let yaml = tree::from_yaml(text, file);
    if let Ok(tree) = &yaml
        && let Some(format) = yaml_format(&keys(tree), file)
    {
        return Ok(format);
    }
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let has_header = text.lines().any(|line| line.trim_start().starts_with('['));
    match (toml, yaml) {
        (Err(_), Err(errors)) if name.ends_with(".yaml") || name.ends_with(".yml") => Err(errors),
        (Err(errors), _) if name.ends_with(".toml") || has_header => Err(errors),
        _ => Err(SettingsErrors(vec![Diagnostic::new(file, 0, "", UNKNOWN_FORMAT)])),
    }
}

/// The error for a file that has none of the formats.
const UNKNOWN_FORMAT: &str = "unknown format: there is no [statsd] section, as a howdah.toml has, and the file is not one \
     of etsy's statsd (config.js), Net::Statsd::Server, the Datadog agent (datadog.yaml), \
     gostatsd, statsite, Telegraf (telegraf.conf) or statsd_exporter (flags or mapping file)";

/// Returns the keys of an object; none for other values.
fn keys(tree: &LiteralNode) -> Vec<&str> {
    match &tree.value {
        Literal::Object(entries) => entries.iter().map(|entry| entry.key.as_str()).collect(),
        _ => Vec::new(),
    }
}

/// Returns the format of a TOML file with these keys at its top level.
fn toml_format(keys: &[&str]) -> Option<SettingsFormat> {
    if keys.contains(&"statsd") {
        Some(SettingsFormat::Howdah)
    } else if keys.iter().any(|key| telegraf::SECTIONS.contains(key)) {
        Some(SettingsFormat::Telegraf)
    } else if keys.iter().any(|key| gostatsd::is_known_key(key)) {
        Some(SettingsFormat::Gostatsd)
    } else {
        None
    }
}

/// Returns the format of a YAML file with these keys at its top level.
fn yaml_format(keys: &[&str], file: &Path) -> Option<SettingsFormat> {
    let is_mapping = keys.contains(&"mappings")
        && keys.iter().all(|key| matches!(*key, "mappings" | "defaults"));
    if is_mapping {
        Some(SettingsFormat::ExporterMapping)
    } else if keys.iter().any(|key| datadog::is_known_key(key)) {
        Some(SettingsFormat::Datadog)
    } else if keys.iter().any(|key| gostatsd::is_known_key(key)) {
        Some(SettingsFormat::Gostatsd)
    } else {
        // A file with other keys of the agent only, or without any.
        let is_named = file.file_stem().is_some_and(|stem| stem == "datadog");
        is_named.then_some(SettingsFormat::Datadog)
    }
}

#[cfg(test)]
mod tests;
