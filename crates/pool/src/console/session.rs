//! [`Session`]: a console's side of the protocol, simple and extended. Takes bytes, gives bytes; what is
//! said is done by an [`Operator`], which may take its time.

use std::collections::HashMap;

use howdah_wire::{
    Format, Frame, HeaderError,
    backend::{
        Field, Severity, TransactionStatus,
        encode::{self, Bare},
    },
    frontend::{Bind, Message, Parse, Target},
    startup::CancelKey,
};

use super::{
    command::Command,
    table::{Column, Kind, Show, Value},
};

/// Who does what is said.
pub(crate) trait Operator {
    /// Gives the rows of a table.
    ///
    /// # Errors
    ///
    /// They cannot be had.
    fn show(&mut self, show: Show) -> Result<Vec<Vec<Value>>, Failure>;

    /// Does something, and returns when it is done, with what is to be said of it beside that.
    ///
    /// # Errors
    ///
    /// It cannot be done.
    fn order(&mut self, command: &Command) -> Result<Vec<String>, Failure>;
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) sqlstate: [u8; 5],
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(sqlstate: [u8; 5], message: impl Into<String>) -> Self {
        Self { sqlstate, message: message.into() }
    }
}

/// A session at the console.
#[derive(Debug)]
pub(crate) struct Session {
    /// Whether it may change things.
    is_admin: bool,
    input: Vec<u8>,
    statements: HashMap<Vec<u8>, String>,
    portals: HashMap<Vec<u8>, Portal>,
    /// A batch has failed and its Sync has not come.
    skipping: bool,
}

#[derive(Clone, Debug)]
struct Portal {
    text: String,
    formats: Vec<Format>,
    is_done: bool,
}

/// Longest message; an operator says little.
const MESSAGE_BYTES_MAX: u32 = 64 * 1024;

/// Statements and portals of one session.
const NAMES_MAX: usize = 1000;

/// The client is to be let go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Disconnect;

impl Session {
    pub(crate) fn new(is_admin: bool) -> Self {
        Self {
            is_admin,
            input: Vec::new(),
            statements: HashMap::new(),
            portals: HashMap::new(),
            skipping: false,
        }
    }

    /// What it is greeted with.
    pub(crate) fn greet(out: &mut Vec<u8>, key: &CancelKey) {
        const PARAMETERS: [(&str, &str); 8] = [
            ("server_version", "1.25.2/howdah"),
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

    /// Takes bytes, and answers them.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        operator: &mut dyn Operator,
        out: &mut Vec<u8>,
    ) -> Result<(), Disconnect> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        loop {
            let (frame, later) = match Frame::split(rest, MESSAGE_BYTES_MAX) {
                Ok(Some(split)) => split,
                Ok(None) => break,
                Err(error) => return Err(fault(&error, out)),
            };
            rest = later;
            let Ok(message) = Message::parse(frame) else {
                return Err(violated("this is no message of the protocol", out));
            };
            self.message(message, operator, out)?;
        }
        self.input = rest.to_vec();
        Ok(())
    }

    fn message(
        &mut self,
        message: Message<'_>,
        operator: &mut dyn Operator,
        out: &mut Vec<u8>,
    ) -> Result<(), Disconnect> {
        let result = match message {
            Message::Terminate => return Err(Disconnect),
            Message::Sync => {
                self.skipping = false;
                self.portals.clear();
                encode::ready_for_query(out, TransactionStatus::Idle);
                return Ok(());
            }
            Message::Query { sql } => {
                self.statements.remove(&b""[..]);
                let done = self.run(&String::from_utf8_lossy(sql), None, operator, out);
                if let Err(failure) = done {
                    refuse(&failure, Severity::Error, out);
                }
                encode::ready_for_query(out, TransactionStatus::Idle);
                return Ok(());
            }
            Message::Flush => return Ok(()),
            _ if self.skipping => return Ok(()),
            Message::Parse(parse) => self.parse(&parse, out),
            Message::Bind(bind) => self.bind(&bind, out),
            Message::Describe(target) => self.describe(target, out),
            Message::Execute { portal, .. } => self.execute(portal, operator, out),
            Message::Close(target) => {
                match target {
                    Target::Statement(name) => drop(self.statements.remove(name)),
                    Target::Portal(name) => drop(self.portals.remove(name)),
                }
                encode::bare(out, Bare::CloseComplete);
                Ok(())
            }
            other => {
                return Err(violated(&format!("the console takes no {}", other.kind()), out));
            }
        };
        if let Err(failure) = result {
            self.skipping = true;
            refuse(&failure, Severity::Error, out);
        }
        Ok(())
    }

    fn parse(&mut self, parse: &Parse<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        let name = parse.statement.to_vec();
        if !name.is_empty() && self.statements.contains_key(&name) {
            return Err(Failure::new(*b"42P05", "there is a prepared statement of that name"));
        }
        if self.statements.len() >= NAMES_MAX {
            return Err(Failure::new(*b"54000", "too many prepared statements"));
        }
        let text = String::from_utf8_lossy(parse.sql).into_owned();
        Command::parse(&text).map_err(|error| Failure::new(*b"42601", error.to_string()))?;
        self.statements.insert(name, text);
        encode::bare(out, Bare::ParseComplete);
        Ok(())
    }

    fn bind(&mut self, bind: &Bind<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        let Some(text) = self.statements.get(bind.statement) else {
            return Err(Failure::new(*b"26000", "there is no prepared statement of that name"));
        };
        if bind.values.clone().next().is_some() {
            return Err(Failure::new(*b"08P01", "commands of the console have no parameters"));
        }
        if self.portals.len() >= NAMES_MAX {
            return Err(Failure::new(*b"54000", "too many portals"));
        }
        let formats = bind.result_formats.clone().collect();
        let portal = Portal { text: text.clone(), formats, is_done: false };
        self.portals.insert(bind.portal.to_vec(), portal);
        encode::bare(out, Bare::BindComplete);
        Ok(())
    }

    fn describe(&self, target: Target<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        let (text, formats) = match target {
            Target::Statement(name) => {
                let text = self.statements.get(name).ok_or_else(|| {
                    Failure::new(*b"26000", "there is no prepared statement of that name")
                })?;
                encode::parameter_description(out, &[]).expect("there are none");
                (text, &[][..])
            }
            Target::Portal(name) => {
                let portal = self.portals.get(name).ok_or_else(no_portal)?;
                (&portal.text, &portal.formats[..])
            }
        };
        match command(text)? {
            Command::Show(show) => describe(&show.columns(), formats, out),
            _ => encode::bare(out, Bare::NoData),
        }
        Ok(())
    }

    fn execute(
        &mut self,
        name: &[u8],
        operator: &mut dyn Operator,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let portal = self.portals.get_mut(name).ok_or_else(no_portal)?;
        if std::mem::replace(&mut portal.is_done, true) {
            return Err(Failure::new(*b"55000", "the portal has been run"));
        }
        let Portal { text, formats, .. } = portal.clone();
        self.run(&text, Some(&formats), operator, out)
    }

    /// Does what a text says; with formats, for who has had it described.
    fn run(
        &self,
        text: &str,
        formats: Option<&[Format]>,
        operator: &mut dyn Operator,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let command = command(text)?;
        if !self.is_admin && !command.only_looks() {
            return Err(Failure::new(*b"42501", "admin access needed"));
        }
        match &command {
            Command::Empty => {
                encode::bare(out, Bare::EmptyQueryResponse);
                return Ok(());
            }
            Command::Show(show) => {
                let rows = operator.show(*show)?;
                let columns = show.columns();
                if formats.is_none() {
                    describe(&columns, &[], out);
                }
                rows.iter().for_each(|row| {
                    data_row(row, &columns, formats.unwrap_or_default(), out);
                });
            }
            Command::Help => notice(&help(), out),
            Command::SetOfSession => {}
            other => operator.order(other)?.iter().for_each(|text| notice(text, out)),
        }
        encode::command_complete(out, command.tag().as_bytes()).expect(NO_ZERO_BYTE);
        Ok(())
    }
}

const NO_ZERO_BYTE: &str = "texts of the console hold no zero byte";

fn command(text: &str) -> Result<Command, Failure> {
    Command::parse(text).map_err(|error| Failure::new(*b"42601", error.to_string()))
}

fn no_portal() -> Failure {
    Failure::new(*b"34000", "there is no portal of that name")
}

fn help() -> String {
    let names: Vec<_> = Show::names().collect();
    format!(
        "Console usage\n\tSHOW {}\n\tSHOW HELP\n\tSET key = arg\n\tRELOAD\n\tPAUSE [db[,user]]\n\t\
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

fn refuse(failure: &Failure, severity: Severity, out: &mut Vec<u8>) {
    let message = failure.message.replace('\0', " ");
    let fields = encode::essentials(severity, &failure.sqlstate, message.as_bytes());
    encode::error_response(out, fields).expect(NO_ZERO_BYTE);
}

fn violated(what: &str, out: &mut Vec<u8>) -> Disconnect {
    refuse(&Failure::new(*b"08P01", what), Severity::Fatal, out);
    Disconnect
}

fn fault(error: &HeaderError, out: &mut Vec<u8>) -> Disconnect {
    violated(&error.to_string(), out)
}

/// The format of a column: one for all of them, or one for each.
fn format_of(formats: &[Format], column: usize) -> Format {
    match formats {
        [] => Format::Text,
        [all] => *all,
        each => each.get(column).copied().unwrap_or(Format::Text),
    }
}

fn describe(columns: &[Column], formats: &[Format], out: &mut Vec<u8>) {
    let field = |(number, column): (usize, &Column)| {
        let (type_oid, type_bytes) = match column.kind {
            Kind::Text => (25, -1),
            Kind::Int4 => (23, 4),
            Kind::Int8 => (20, 8),
            Kind::Numeric => (1700, -1),
        };
        let name = column.name.as_bytes();
        let format = format_of(formats, number);
        Field { name, table: 0, column: 0, type_oid, type_bytes, type_modifier: -1, format }
    };
    let fields: Vec<_> = columns.iter().enumerate().map(field).collect();
    encode::row_description(out, fields).expect(NO_ZERO_BYTE);
}

fn data_row(row: &[Value], columns: &[Column], formats: &[Format], out: &mut Vec<u8>) {
    let cell = |(number, value): (usize, &Value)| match (value, format_of(formats, number)) {
        (Value::Null, _) => None,
        (Value::Text(text), _) => Some(text.replace('\0', " ").into_bytes()),
        (Value::Int(number), Format::Text) => Some(number.to_string().into_bytes()),
        (Value::Int(value), _) => Some(match columns[number].kind {
            Kind::Int4 => i32::try_from(*value).unwrap_or(i32::MAX).to_be_bytes().to_vec(),
            Kind::Numeric => numeric(*value),
            Kind::Int8 | Kind::Text => value.to_be_bytes().to_vec(),
        }),
    };
    let cells: Vec<_> = row.iter().enumerate().map(cell).collect();
    encode::data_row(out, cells.iter().map(Option::as_deref)).expect("rows are short");
}

/// A whole number in numeric's binary form: how many digits of base 10,000, the weight of the first,
/// the sign, how many decimal digits behind the point, the digits (`numeric_send` in `numeric.c`).
fn numeric(value: i64) -> Vec<u8> {
    let mut digits = Vec::new();
    let mut rest = value.unsigned_abs();
    while rest > 0 {
        digits.push(u16::try_from(rest % 10_000).expect("it is less"));
        rest /= 10_000;
    }
    digits.reverse();
    let count = u16::try_from(digits.len()).expect("it is five at most");
    let weight = count.saturating_sub(1);
    let sign = if value < 0 { 0x4000 } else { 0 };
    let parts = [count, weight, sign, 0].into_iter().chain(digits);
    parts.flat_map(u16::to_be_bytes).collect()
}

#[cfg(test)]
mod tests;
