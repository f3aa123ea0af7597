//! Actions that outlive the record they were told by, in memory that is used again.

use howdah_traffic::{ActionRef, BoundRef, CopyDirection, Hashed, Kind, Parameters, Slot};

/// One action, with the bytes of all its texts in one run.
#[derive(Debug)]
pub(super) struct Held {
    kind: Kind,
    direction: CopyDirection,
    /// Statement (or function), portal, text, and the bytes that hold the values.
    bytes: Vec<u8>,
    statement_end: usize,
    portal_end: usize,
    sql_end: usize,
    sql_hash: u64,
    slots: Vec<Slot>,
    has_parameters: bool,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            kind: Kind::Connect,
            direction: CopyDirection::In,
            bytes: Vec::new(),
            statement_end: 0,
            portal_end: 0,
            sql_end: 0,
            sql_hash: 0,
            slots: Vec::new(),
            has_parameters: false,
        }
    }
}

impl Held {
    /// Takes another action in place of the one before.
    pub(super) fn set(&mut self, action: &ActionRef<'_>) {
        self.clear();
        self.kind = action.kind();
        let (bound, sql) = match action {
            ActionRef::Bind(bound) | ActionRef::Execute(bound) | ActionRef::Fetch(bound) => {
                self.add(bound.statement);
                (Some(bound), Some(bound.sql))
            }
            ActionRef::Simple { sql } => (None, Some(*sql)),
            ActionRef::Copy { sql, direction } => {
                self.direction = *direction;
                (None, Some(*sql))
            }
            ActionRef::Parse { statement, sql } => {
                self.add(statement);
                (None, Some(*sql))
            }
            ActionRef::Call { function } => {
                self.add(function);
                (None, None)
            }
            ActionRef::Connect | ActionRef::Disconnect | ActionRef::Cancel => (None, None),
        };
        self.statement_end = self.bytes.len();
        self.add(bound.map_or(b"", |bound| bound.portal));
        self.portal_end = self.bytes.len();
        if let Some(sql) = sql {
            self.bytes.extend_from_slice(sql.as_bytes());
            self.sql_hash = sql.hash();
        }
        self.sql_end = self.bytes.len();
        let parameters = bound.and_then(|bound| bound.parameters);
        self.has_parameters = parameters.is_some();
        match parameters {
            Some(Parameters::Flat { bytes, slots }) => {
                self.bytes.extend_from_slice(bytes);
                self.slots.extend_from_slice(slots);
            }
            // Lists come from events, which nobody gives to a tracker; that of no values is empty.
            Some(Parameters::List(_)) | None => {}
        }
    }

    /// Adds a text, which is empty for most names.
    #[inline]
    fn add(&mut self, text: &[u8]) {
        if !text.is_empty() {
            self.bytes.extend_from_slice(text);
        }
    }

    /// Forgets the texts, and gives memory back that few actions need.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.slots.clear();
        if self.bytes.capacity() > BYTES_KEPT {
            self.bytes = Vec::new();
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    #[inline]
    pub(super) fn action(&self) -> ActionRef<'_> {
        match self.kind {
            Kind::Connect => ActionRef::Connect,
            Kind::Disconnect => ActionRef::Disconnect,
            Kind::Simple => ActionRef::Simple { sql: self.sql() },
            Kind::Copy => ActionRef::Copy { sql: self.sql(), direction: self.direction },
            Kind::Parse => ActionRef::Parse { statement: self.statement(), sql: self.sql() },
            Kind::Bind => ActionRef::Bind(self.bound()),
            Kind::Execute => ActionRef::Execute(self.bound()),
            Kind::Fetch => ActionRef::Fetch(self.bound()),
            Kind::Call => ActionRef::Call { function: self.statement() },
            Kind::Cancel => ActionRef::Cancel,
        }
    }

    /// The action as that of a prepared statement, whatever its kind.
    #[inline]
    pub(super) fn bound(&self) -> BoundRef<'_> {
        let (bytes, slots) = (&self.bytes[self.sql_end..], self.slots.as_slice());
        BoundRef {
            statement: self.statement(),
            portal: &self.bytes[self.statement_end..self.portal_end],
            sql: self.sql(),
            parameters: self.has_parameters.then_some(Parameters::Flat { bytes, slots }),
        }
    }

    fn statement(&self) -> &[u8] {
        &self.bytes[..self.statement_end]
    }

    pub(super) fn sql(&self) -> Hashed<'_> {
        Hashed::with_hash(&self.bytes[self.portal_end..self.sql_end], self.sql_hash)
    }
}

/// Sessions are many, so what each keeps is small.
const BYTES_KEPT: usize = 64 << 10;

#[test]
fn held_actions_are_what_was_put_in() {
    let sql = Hashed::new(b"select $1, $2");
    let slots = [Slot::Value(6, 7), Slot::Null];
    let parameters = Some(Parameters::Flat { bytes: b"$1 = 'x', $2 = NULL", slots: &slots });
    let bound = BoundRef { statement: b"S_1", portal: b"C_1", sql, parameters };
    let mut held = Held::default();
    for action in [
        ActionRef::Execute(bound),
        ActionRef::Connect,
        ActionRef::Call { function: b"random" },
        ActionRef::Fetch(BoundRef { parameters: None, ..bound }),
        ActionRef::Copy { sql, direction: CopyDirection::Out },
        ActionRef::Parse { statement: b"", sql },
        ActionRef::Bind(BoundRef { parameters: Some(Parameters::NONE), ..bound }),
        ActionRef::Simple { sql },
    ] {
        held.set(&action);
        assert_eq!(held.kind(), action.kind());
        let told = held.action();
        assert_eq!((told.sql(), told.statement()), (action.sql(), action.statement()));
        match (told.bound(), action.bound()) {
            (Some(told), Some(put)) => {
                assert_eq!(told.portal, put.portal);
                let values = |of: Option<Parameters<'_>>| {
                    of.map(|of| of.iter().map(|v| v.text().map(<[u8]>::to_vec)).collect::<Vec<_>>())
                };
                assert_eq!(values(told.parameters), values(put.parameters));
            }
            (told, put) => assert!(told.is_none() && put.is_none()),
        }
    }
}
