//! Builds a [`CopyFrom`] from `COPY table FROM STDIN`.

use pg_query::{
    NodeEnum,
    protobuf::{CopyStmt, DefElem},
};

use crate::{
    copy::{CopyFrom, CopyRowFormat},
    refusal::NoShardKey,
    settings::RoutedTable,
};

impl CopyFrom {
    /// Analyzes a COPY from the client to `table`.
    pub(super) fn read(copy: &CopyStmt, table: &RoutedTable) -> Result<Self, NoShardKey> {
        let name: Box<str> = table.name.as_str().into();
        let columns: Vec<_> =
            copy.attlist.iter().filter_map(|node| string(node.node.as_ref())).collect();
        if columns.is_empty() {
            return Err(NoShardKey::Columns(name));
        }
        let place = |key: &String| columns.iter().position(|column| column == key);
        let key = table.key.iter().map(place).collect::<Option<_>>();
        let key = key.ok_or_else(|| NoShardKey::Write(name.clone()))?;
        let mut said = CopyOptions::default();
        for option in &copy.options {
            if let Some(NodeEnum::DefElem(option)) = &option.node {
                said.set(option).ok_or(NoShardKey::Kind)?;
            }
        }
        let format = said.format().ok_or(NoShardKey::Kind)?;
        Ok(Self { table: name, key, format, header: said.header })
    }
}

/// The options of a COPY as written in the statement.
#[derive(Default)]
struct CopyOptions {
    format: Option<String>,
    delimiter: Option<u8>,
    null: Option<String>,
    quote: Option<u8>,
    escape: Option<u8>,
    header: bool,
}

impl CopyOptions {
    /// Records one option; `None` if its effect on rows is not supported.
    fn set(&mut self, option: &DefElem) -> Option<()> {
        let arg = option.arg.as_deref().map(|arg| arg.node.as_ref());
        let word = arg.and_then(string);
        let byte = || match word.as_deref()?.as_bytes() {
            [byte] => Some(*byte),
            _ => None,
        };
        match option.defname.as_str() {
            "format" => self.format = Some(word?),
            "delimiter" => self.delimiter = Some(byte()?),
            "null" => self.null = Some(word?),
            "quote" => self.quote = Some(byte()?),
            "escape" => self.escape = Some(byte()?),
            "header" => self.header = is_on(arg)?,
            "freeze" => {}
            _ => return None,
        }
        Some(())
    }

    fn format(&self) -> Option<CopyRowFormat> {
        let null = |default: &str| self.null.as_deref().unwrap_or(default).into();
        match self.format.as_deref().unwrap_or("text") {
            "text" => {
                let delimiter = self.delimiter.unwrap_or(b'\t');
                Some(CopyRowFormat::Text { delimiter, null: null("\\N") })
            }
            "csv" => {
                let quote = self.quote.unwrap_or(b'"');
                Some(CopyRowFormat::Csv {
                    delimiter: self.delimiter.unwrap_or(b','),
                    null: null(""),
                    quote,
                    escape: self.escape.unwrap_or(quote),
                })
            }
            "binary" => Some(CopyRowFormat::Binary),
            _ => None,
        }
    }
}

fn string(node: Option<&NodeEnum>) -> Option<String> {
    match node? {
        NodeEnum::String(word) => Some(word.sval.clone()),
        _ => None,
    }
}

/// Returns the value of a boolean option, which is on if no value is given; `None` if the value is
/// not supported.
fn is_on(arg: Option<Option<&NodeEnum>>) -> Option<bool> {
    match arg {
        None => Some(true),
        Some(Some(NodeEnum::Boolean(value))) => Some(value.boolval),
        Some(Some(NodeEnum::Integer(value))) => Some(value.ival != 0),
        Some(Some(NodeEnum::String(word))) => match word.sval.to_ascii_lowercase().as_str() {
            "true" | "on" | "match" => Some(true),
            "false" | "off" => Some(false),
            _ => None,
        },
        _ => None,
    }
}
