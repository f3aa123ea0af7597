//! Stores copies of actions that outlive their record, in reused memory.

use howdah_traffic::{
    ActionRef, BoundRef, CopyDirection, Hashed, Kind, ParameterSpan, ParametersRef,
};

/// One action, with all its texts in one buffer.
#[derive(Debug)]
pub(super) struct ActionBuffer {
    kind: Kind,
    direction: CopyDirection,
    /// Statement (or function), portal and SQL, then the bytes that contain the values.
    bytes: Vec<u8>,
    statement_end: usize,
    portal_end: usize,
    sql_end: usize,
    sql_hash: u64,
    slots: Vec<ParameterSpan>,
    has_parameters: bool,
}

impl Default for ActionBuffer {
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

impl ActionBuffer {
    /// Stores a copy of an action, which replaces the previous one.
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
            Some(ParametersRef::Flat { bytes, spans: slots }) => {
                self.bytes.extend_from_slice(bytes);
                self.slots.extend_from_slice(slots);
            }
            // Lists occur only in owned events, which never reach a tracker, except for the empty
            // list.
            Some(ParametersRef::List(_)) | None => {}
        }
    }

    /// Appends a text; most names are empty.
    #[inline]
    fn add(&mut self, text: &[u8]) {
        if !text.is_empty() {
            self.bytes.extend_from_slice(text);
        }
    }

    /// Clears the texts and values, and frees a text buffer that a large action made larger.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.slots.clear();
        if self.bytes.capacity() > RETAINED_BYTES_MAX {
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

    /// Views the action as the execution of a prepared statement, regardless of its kind.
    #[inline]
    pub(super) fn bound(&self) -> BoundRef<'_> {
        let (bytes, slots) = (&self.bytes[self.sql_end..], self.slots.as_slice());
        BoundRef {
            statement: self.statement(),
            portal: &self.bytes[self.statement_end..self.portal_end],
            sql: self.sql(),
            parameters: self.has_parameters.then_some(ParametersRef::Flat { bytes, spans: slots }),
        }
    }

    fn statement(&self) -> &[u8] {
        &self.bytes[..self.statement_end]
    }

    pub(super) fn sql(&self) -> Hashed<'_> {
        Hashed::with_hash(&self.bytes[self.portal_end..self.sql_end], self.sql_hash)
    }
}

/// Maximum retained capacity in bytes, which is small because there are many sessions.
const RETAINED_BYTES_MAX: usize = 64 << 10;

#[test]
fn stored_action_equals_its_source() {
    let sql = Hashed::new(b"select $1, $2");
    let slots = [ParameterSpan::Value(6, 7), ParameterSpan::Null];
    let parameters = Some(ParametersRef::Flat { bytes: b"$1 = 'x', $2 = NULL", spans: &slots });
    let bound = BoundRef { statement: b"S_1", portal: b"C_1", sql, parameters };
    let mut buffer = ActionBuffer::default();
    for action in [
        ActionRef::Execute(bound),
        ActionRef::Connect,
        ActionRef::Call { function: b"random" },
        ActionRef::Fetch(BoundRef { parameters: None, ..bound }),
        ActionRef::Copy { sql, direction: CopyDirection::Out },
        ActionRef::Parse { statement: b"", sql },
        ActionRef::Bind(BoundRef { parameters: Some(ParametersRef::NONE), ..bound }),
        ActionRef::Simple { sql },
    ] {
        buffer.set(&action);
        assert_eq!(buffer.kind(), action.kind());
        let stored = buffer.action();
        assert_eq!((stored.sql(), stored.statement()), (action.sql(), action.statement()));
        match (stored.bound(), action.bound()) {
            (Some(stored), Some(expected)) => {
                assert_eq!(stored.portal, expected.portal);
                let values = |of: Option<ParametersRef<'_>>| {
                    of.map(|of| of.iter().map(|v| v.text().map(<[u8]>::to_vec)).collect::<Vec<_>>())
                };
                assert_eq!(values(stored.parameters), values(expected.parameters));
            }
            (stored, expected) => assert!(stored.is_none() && expected.is_none()),
        }
    }
}
