//! [`ConsoleSession`]: the server side of the simple and the extended query protocol for the
//! console. It processes bytes and returns bytes; a [`ConsoleBackend`] executes commands, and may
//! block.

use std::collections::HashMap;

use howdah_wire::{
    Frame, HeaderError, ValueFormat,
    backend::{
        FieldDescription, Severity, TransactionStatus,
        encode::{self, Bare},
    },
    frontend::{Bind, DescribeTarget, FrontendMessage, Parse},
    startup::CancelKey,
};

use super::{
    command::{ConsoleCommand, TransactionCommand},
    table::{CellValue, ColumnType, Show, ShowColumn},
};

/// Executes the commands of a [`ConsoleSession`].
pub(crate) trait ConsoleBackend {
    /// Returns the rows of a table.
    ///
    /// # Errors
    ///
    /// The rows are not available.
    fn show(&mut self, show: Show) -> Result<Vec<Vec<CellValue>>, ConsoleError>;

    /// Returns the value of a setting by PgBouncer's name, as in SHOW CONFIG.
    fn setting(&mut self, name: &str) -> Option<String>;

    /// Executes a command, blocks until it is complete, and returns notices for the client.
    ///
    /// # Errors
    ///
    /// The command failed.
    fn execute_command(&mut self, command: &ConsoleCommand) -> Result<Vec<String>, ConsoleError>;
}

/// The error of a command, as it is sent to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConsoleError {
    pub(crate) sqlstate: [u8; 5],
    pub(crate) message: String,
}

impl ConsoleError {
    pub(crate) fn new(sqlstate: [u8; 5], message: impl Into<String>) -> Self {
        Self { sqlstate, message: message.into() }
    }
}

/// The protocol state of one client of the console.
#[derive(Debug)]
pub(crate) struct ConsoleSession {
    /// Whether the client may run commands that are not read-only.
    is_admin: bool,
    input: Vec<u8>,
    statements: HashMap<Vec<u8>, String>,
    portals: HashMap<Vec<u8>, ConsolePortal>,
    /// The transaction status, which BEGIN and its like change. Commands take effect at once.
    status: TransactionStatus,
    /// Whether messages are skipped until Sync, because of an error in the extended protocol.
    skipping: bool,
}

#[derive(Clone, Debug)]
struct ConsolePortal {
    text: String,
    formats: Vec<ValueFormat>,
    is_done: bool,
}

/// Maximum length of a message in bytes; commands are short.
const MESSAGE_BYTES_MAX: u32 = 64 * 1024;

/// Maximum number of prepared statements in a session; the same maximum applies to portals.
const NAMES_MAX: usize = 1000;

/// The error for a client that must be disconnected, because it sent Terminate or violated the
/// protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Disconnect;

impl ConsoleSession {
    pub(crate) fn new(is_admin: bool) -> Self {
        Self {
            is_admin,
            input: Vec::new(),
            statements: HashMap::new(),
            portals: HashMap::new(),
            status: TransactionStatus::Idle,
            skipping: false,
        }
    }

    /// Writes the messages that follow a successful login, up to ReadyForQuery.
    pub(crate) fn write_welcome(out: &mut Vec<u8>, key: &CancelKey) {
        const PARAMETERS: [(&str, &str); 8] = [
            ("server_version", super::SERVER_VERSION),
            ("client_encoding", "UTF8"),
            ("server_encoding", "UTF8"),
            ("DateStyle", "ISO"),
            ("TimeZone", "GMT"),
            ("standard_conforming_strings", "on"),
            ("integer_datetimes", "on"),
            ("is_superuser", "on"),
        ];
        for (name, value) in PARAMETERS {
            encode::parameter_status(out, name.as_bytes(), value.as_bytes()).expect(NO_ZERO_BYTE);
        }
        encode::backend_key_data(out, key);
        encode::ready_for_query(out, TransactionStatus::Idle);
    }

    /// Processes bytes from the client, and appends the replies to `out`.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        backend: &mut dyn ConsoleBackend,
        out: &mut Vec<u8>,
    ) -> Result<(), Disconnect> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        loop {
            let (frame, later) = match Frame::split(rest, MESSAGE_BYTES_MAX) {
                Ok(Some(split)) => split,
                Ok(None) => break,
                Err(error) => return Err(header_error(&error, out)),
            };
            rest = later;
            let Ok(message) = FrontendMessage::parse(frame) else {
                return Err(protocol_violation("invalid protocol message", out));
            };
            self.message(message, backend, out)?;
        }
        self.input = rest.to_vec();
        Ok(())
    }

    fn message(
        &mut self,
        message: FrontendMessage<'_>,
        backend: &mut dyn ConsoleBackend,
        out: &mut Vec<u8>,
    ) -> Result<(), Disconnect> {
        let result = match message {
            FrontendMessage::Terminate => return Err(Disconnect),
            FrontendMessage::Sync => {
                self.skipping = false;
                self.portals.clear();
                encode::ready_for_query(out, self.status);
                return Ok(());
            }
            FrontendMessage::Query { sql } => {
                self.statements.remove(&b""[..]);
                let done = self.run(&String::from_utf8_lossy(sql), None, backend, out);
                if let Err(failure) = done {
                    write_error(&failure, Severity::Error, out);
                }
                encode::ready_for_query(out, self.status);
                return Ok(());
            }
            FrontendMessage::Flush => return Ok(()),
            _ if self.skipping => return Ok(()),
            FrontendMessage::Parse(parse) => self.parse(&parse, out),
            FrontendMessage::Bind(bind) => self.bind(&bind, out),
            FrontendMessage::Describe(target) => self.describe(target, out),
            FrontendMessage::Execute { portal, .. } => self.execute(portal, backend, out),
            FrontendMessage::Close(target) => {
                match target {
                    DescribeTarget::Statement(name) => drop(self.statements.remove(name)),
                    DescribeTarget::Portal(name) => drop(self.portals.remove(name)),
                }
                encode::bare(out, Bare::CloseComplete);
                Ok(())
            }
            other => {
                return Err(protocol_violation(
                    &format!("the console does not support {}", other.kind()),
                    out,
                ));
            }
        };
        if let Err(failure) = result {
            self.skipping = true;
            write_error(&failure, Severity::Error, out);
        }
        Ok(())
    }

    fn parse(&mut self, parse: &Parse<'_>, out: &mut Vec<u8>) -> Result<(), ConsoleError> {
        let name = parse.statement.to_vec();
        if !name.is_empty() && self.statements.contains_key(&name) {
            let name = String::from_utf8_lossy(&name);
            let text = format!("prepared statement \"{name}\" already exists");
            return Err(ConsoleError::new(*b"42P05", text));
        }
        if self.statements.len() >= NAMES_MAX {
            return Err(ConsoleError::new(*b"54000", "too many prepared statements"));
        }
        let text = String::from_utf8_lossy(parse.sql).into_owned();
        ConsoleCommand::parse(&text)
            .map_err(|error| ConsoleError::new(*b"42601", error.to_string()))?;
        self.statements.insert(name, text);
        encode::bare(out, Bare::ParseComplete);
        Ok(())
    }

    fn bind(&mut self, bind: &Bind<'_>, out: &mut Vec<u8>) -> Result<(), ConsoleError> {
        let Some(text) = self.statements.get(bind.statement) else {
            return Err(no_statement(bind.statement));
        };
        if bind.values.clone().next().is_some() {
            return Err(ConsoleError::new(*b"08P01", "console commands have no parameters"));
        }
        if self.portals.len() >= NAMES_MAX {
            return Err(ConsoleError::new(*b"54000", "too many portals"));
        }
        let formats = bind.result_formats.clone().collect();
        let portal = ConsolePortal { text: text.clone(), formats, is_done: false };
        self.portals.insert(bind.portal.to_vec(), portal);
        encode::bare(out, Bare::BindComplete);
        Ok(())
    }

    fn describe(&self, target: DescribeTarget<'_>, out: &mut Vec<u8>) -> Result<(), ConsoleError> {
        let (text, formats) = match target {
            DescribeTarget::Statement(name) => {
                let text = self.statements.get(name).ok_or_else(|| no_statement(name))?;
                encode::parameter_description(out, &[]).expect("no parameters fit into a message");
                (text, &[][..])
            }
            DescribeTarget::Portal(name) => {
                let portal = self.portals.get(name).ok_or_else(|| no_portal(name))?;
                (&portal.text, &portal.formats[..])
            }
        };
        match command(text)? {
            ConsoleCommand::Show(show) => describe(&show.columns(), formats, out),
            ConsoleCommand::Value { name, is_select, .. } => {
                describe(&value_column(name, is_select), formats, out);
            }
            ConsoleCommand::ShowSetting(name) => {
                describe(&value_column(name, false), formats, out);
            }
            _ => encode::bare(out, Bare::NoData),
        }
        Ok(())
    }

    fn execute(
        &mut self,
        name: &[u8],
        backend: &mut dyn ConsoleBackend,
        out: &mut Vec<u8>,
    ) -> Result<(), ConsoleError> {
        let portal = self.portals.get_mut(name).ok_or_else(|| no_portal(name))?;
        if std::mem::replace(&mut portal.is_done, true) {
            return Err(ConsoleError::new(*b"55000", "the portal has already been executed"));
        }
        let ConsolePortal { text, formats, .. } = portal.clone();
        self.run(&text, Some(&formats), backend, out)
    }

    /// Runs a command. If `formats` is set, as in the extended protocol, no RowDescription is sent.
    fn run(
        &mut self,
        text: &str,
        formats: Option<&[ValueFormat]>,
        backend: &mut dyn ConsoleBackend,
        out: &mut Vec<u8>,
    ) -> Result<(), ConsoleError> {
        let command = command(text)?;
        if let ConsoleCommand::Invalid(why) = command {
            return Err(ConsoleError::new(*b"22023", why));
        }
        if !self.is_admin && !command.is_read_only() {
            return Err(ConsoleError::new(*b"42501", "admin access needed"));
        }
        match &command {
            ConsoleCommand::Empty => {
                encode::bare(out, Bare::EmptyQueryResponse);
                return Ok(());
            }
            ConsoleCommand::Show(show) => {
                let rows = backend.show(*show)?;
                let columns = show.columns();
                if formats.is_none() {
                    describe(&columns, &[], out);
                }
                rows.iter().for_each(|row| {
                    data_row(row, &columns, formats.unwrap_or_default(), out);
                });
            }
            ConsoleCommand::Value { name, value, is_select } => {
                value_row(value_column(name, *is_select), Some(value), formats, out);
            }
            ConsoleCommand::ShowSetting(name) => {
                let value = backend.setting(name);
                value_row(value_column(name, false), value.as_deref(), formats, out);
            }
            ConsoleCommand::Help => {
                let fields = encode::essentials(Severity::Notice, b"00000", b"Console usage");
                let detail = help();
                let fields = fields.into_iter().chain([(b'D', detail.as_bytes())]);
                encode::notice_response(out, fields).expect(NO_ZERO_BYTE);
            }
            ConsoleCommand::SetSessionParameter => notice("SET ignored", out),
            ConsoleCommand::Transaction(command) => match command {
                TransactionCommand::Begin => self.status = TransactionStatus::InTransaction,
                TransactionCommand::Commit | TransactionCommand::Rollback => {
                    self.status = TransactionStatus::Idle;
                }
                _ => {}
            },
            other => backend.execute_command(other)?.iter().for_each(|text| notice(text, out)),
        }
        encode::command_complete(out, command.tag().as_bytes()).expect(NO_ZERO_BYTE);
        Ok(())
    }
}

const NO_ZERO_BYTE: &str = "texts of the console contain no zero byte";

fn command(text: &str) -> Result<ConsoleCommand, ConsoleError> {
    ConsoleCommand::parse(text).map_err(|error| ConsoleError::new(*b"42601", error.to_string()))
}

fn no_statement(name: &[u8]) -> ConsoleError {
    let text = match name {
        b"" => "unnamed prepared statement does not exist".to_owned(),
        name => format!("prepared statement \"{}\" does not exist", String::from_utf8_lossy(name)),
    };
    ConsoleError::new(*b"26000", text)
}

fn no_portal(name: &[u8]) -> ConsoleError {
    let name = String::from_utf8_lossy(name);
    ConsoleError::new(*b"34000", format!("portal \"{name}\" does not exist"))
}

fn help() -> String {
    let names: Vec<_> = Show::names().collect();
    format!(
        "\n\tSHOW {}\n\tSHOW HELP\n\tSET key = arg\n\tRELOAD\n\tPAUSE [db[,user]]\n\t\
         RESUME [db[,user]]\n\tDISABLE db\n\tENABLE db\n\tRECONNECT [db]\n\tKILL [db]\n\t\
         KILL_CLIENT id\n\tSUSPEND\n\tBAN host[:port] [seconds]\n\tUNBAN host[:port]\n\t\
         RESET CLUSTER database\n\t\
         WAIT_CLOSE [db]\n\tCAPTURE START [name]\n\tCAPTURE STOP\n\tSHUTDOWN\n\t\
         SHUTDOWN WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS",
        names.join("|")
    )
}

fn notice(text: &str, out: &mut Vec<u8>) {
    let text = text.replace('\0', " ");
    let fields = encode::essentials(Severity::Notice, b"00000", text.as_bytes());
    encode::notice_response(out, fields).expect(NO_ZERO_BYTE);
}

fn write_error(failure: &ConsoleError, severity: Severity, out: &mut Vec<u8>) {
    let message = failure.message.replace('\0', " ");
    let fields = encode::essentials(severity, &failure.sqlstate, message.as_bytes());
    encode::error_response(out, fields).expect(NO_ZERO_BYTE);
}

fn protocol_violation(what: &str, out: &mut Vec<u8>) -> Disconnect {
    write_error(&ConsoleError::new(*b"08P01", what), Severity::Fatal, out);
    Disconnect
}

fn header_error(error: &HeaderError, out: &mut Vec<u8>) -> Disconnect {
    protocol_violation(&error.to_string(), out)
}

/// Returns the format of a column: `formats` is empty (all text), or has one format for all
/// columns, or one for each.
fn column_format(formats: &[ValueFormat], column: usize) -> ValueFormat {
    match formats {
        [] => ValueFormat::Text,
        [all] => *all,
        each => each.get(column).copied().unwrap_or(ValueFormat::Text),
    }
}

fn describe(columns: &[ShowColumn], formats: &[ValueFormat], out: &mut Vec<u8>) {
    let field = |(number, column): (usize, &ShowColumn)| {
        let (type_oid, type_bytes) = match column.kind {
            ColumnType::Text => (25, -1),
            ColumnType::Int4 => (23, 4),
            ColumnType::Int8 => (20, 8),
            ColumnType::Numeric => (1700, -1),
            ColumnType::Bytea => (17, -1),
        };
        let name = column.name.as_bytes();
        let format = column_format(formats, number);
        FieldDescription {
            name,
            table: 0,
            column: 0,
            type_oid,
            type_bytes,
            type_modifier: -1,
            format,
        }
    };
    let fields: Vec<_> = columns.iter().enumerate().map(field).collect();
    encode::row_description(out, fields).expect(NO_ZERO_BYTE);
}

/// The column of a single value.
fn value_column(name: &'static str, is_number: bool) -> [ShowColumn; 1] {
    let kind = if is_number { ColumnType::Int4 } else { ColumnType::Text };
    [ShowColumn { name, kind }]
}

/// Writes a table with a single value. If `formats` is set, no RowDescription is sent.
fn value_row(
    column: [ShowColumn; 1],
    value: Option<&str>,
    formats: Option<&[ValueFormat]>,
    out: &mut Vec<u8>,
) {
    if formats.is_none() {
        describe(&column, &[], out);
    }
    let value = match (value, column[0].kind) {
        (Some(value), ColumnType::Int4) => value.parse().map_or(CellValue::Null, CellValue::Int),
        (value, _) => value.into(),
    };
    data_row(&[value], &column, formats.unwrap_or_default(), out);
}

fn data_row(row: &[CellValue], columns: &[ShowColumn], formats: &[ValueFormat], out: &mut Vec<u8>) {
    let cell = |(number, value): (usize, &CellValue)| match (value, column_format(formats, number))
    {
        (CellValue::Null, _) => None,
        (CellValue::Text(text), _) => Some(text.replace('\0', " ").into_bytes()),
        (CellValue::Int(number), ValueFormat::Text) => Some(number.to_string().into_bytes()),
        (CellValue::Int(value), _) => Some(match columns[number].kind {
            ColumnType::Int4 => i32::try_from(*value).unwrap_or(i32::MAX).to_be_bytes().to_vec(),
            ColumnType::Numeric => numeric(*value),
            ColumnType::Int8 | ColumnType::Text | ColumnType::Bytea => value.to_be_bytes().to_vec(),
        }),
    };
    let cells: Vec<_> = row.iter().enumerate().map(cell).collect();
    encode::data_row(out, cells.iter().map(Option::as_deref))
        .expect("console rows fit into a message");
}

/// Encodes an integer in the binary format of numeric: number of base-10,000 digits, weight of the
/// first, sign, number of decimal digits after the point, digits (`numeric_send` in `numeric.c`).
fn numeric(value: i64) -> Vec<u8> {
    let mut digits = Vec::new();
    let mut rest = value.unsigned_abs();
    while rest > 0 {
        digits.push(u16::try_from(rest % 10_000).expect("the remainder is below 10,000"));
        rest /= 10_000;
    }
    digits.reverse();
    let count = u16::try_from(digits.len()).expect("an i64 has at most five such digits");
    let weight = count.saturating_sub(1);
    let sign = if value < 0 { 0x4000 } else { 0 };
    let parts = [count, weight, sign, 0].into_iter().chain(digits);
    parts.flat_map(u16::to_be_bytes).collect()
}

#[cfg(test)]
mod tests;
