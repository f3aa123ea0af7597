//! [`SqlCommand`]: the leading keyword of a statement.

use std::fmt;

use crate::lexer::{Lexer, TokenKind};

macro_rules! commands {
    ($($(#[$doc:meta])* $variant:ident = $name:literal: $($words:literal),+;)*) => {
        /// The kind of a statement, determined by its leading keyword.
        ///
        /// The rest of the statement is not examined, so a `WITH` may contain a DELETE, and an
        /// `EXPLAIN` may execute its statement.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum SqlCommand {
            $($(#[$doc])* $variant,)*
            /// No keyword: the text consists of white space, comments, semicolons and opening
            /// parentheses.
            Empty,
            /// A keyword that is not in the table of commands.
            Other,
        }

        impl SqlCommand {
            /// Returns the keyword in upper case; the main one if there are several. It is `OTHER`
            /// for [`Self::Other`] and empty for [`Self::Empty`].
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Empty => "",
                    Self::Other => "OTHER",
                }
            }

            fn from_keyword(word: &[u8]) -> Self {
                $($(if word.eq_ignore_ascii_case($words.as_bytes()) {
                    return Self::$variant;
                })+)*
                Self::Other
            }
        }
    };
}

commands! {
    /// `SELECT`, also in parentheses.
    Select = "SELECT": "select";
    /// `INSERT`, with `VALUES` or a query.
    Insert = "INSERT": "insert";
    /// `UPDATE`, also with `WHERE CURRENT OF`.
    Update = "UPDATE": "update";
    /// `DELETE`, also with `WHERE CURRENT OF`.
    Delete = "DELETE": "delete";
    /// `MERGE`, since PostgreSQL 15.
    Merge = "MERGE": "merge";
    /// `WITH`, with any main statement.
    With = "WITH": "with";
    /// `VALUES` as a complete statement.
    Values = "VALUES": "values";
    /// `TABLE name`, short for `SELECT * FROM name`.
    Table = "TABLE": "table";
    /// `BEGIN` or `START TRANSACTION`.
    Begin = "BEGIN": "begin", "start";
    /// `COMMIT` or `END`, also `COMMIT PREPARED`.
    Commit = "COMMIT": "commit", "end";
    /// `ROLLBACK` or `ABORT`, also `ROLLBACK TO`.
    Rollback = "ROLLBACK": "rollback", "abort";
    /// `SAVEPOINT name`, within a transaction.
    Savepoint = "SAVEPOINT": "savepoint";
    /// `RELEASE` of a savepoint.
    Release = "RELEASE": "release";
    /// `PREPARE`, of a statement or of a transaction.
    Prepare = "PREPARE": "prepare";
    /// `EXECUTE` of a prepared statement.
    Execute = "EXECUTE": "execute";
    /// `DEALLOCATE` of one or all prepared statements.
    Deallocate = "DEALLOCATE": "deallocate";
    /// `DECLARE` of a cursor.
    Declare = "DECLARE": "declare";
    /// `FETCH` or `MOVE` with a cursor.
    Fetch = "FETCH": "fetch", "move";
    /// `CLOSE` of one or all cursors.
    Close = "CLOSE": "close";
    /// `COPY`, in either direction.
    Copy = "COPY": "copy";
    /// `SET`, for the session or transaction, also `SET ROLE` and `SET CONSTRAINTS`.
    Set = "SET": "set";
    /// `RESET` of one or all settings.
    Reset = "RESET": "reset";
    /// `SHOW` of a setting.
    Show = "SHOW": "show";
    /// `DISCARD` of session state.
    Discard = "DISCARD": "discard";
    /// `EXPLAIN`, with or without `ANALYZE`.
    Explain = "EXPLAIN": "explain";
    /// `LOCK` of tables.
    Lock = "LOCK": "lock";
    /// `LISTEN` to a channel.
    Listen = "LISTEN": "listen";
    /// `UNLISTEN` of one or all channels.
    Unlisten = "UNLISTEN": "unlisten";
    /// `NOTIFY` on a channel.
    Notify = "NOTIFY": "notify";
    /// `CALL` of a procedure.
    Call = "CALL": "call";
    /// `DO` with an anonymous code block.
    Do = "DO": "do";
    /// `TRUNCATE` of tables.
    Truncate = "TRUNCATE": "truncate";
    /// `CREATE` of any object.
    Create = "CREATE": "create";
    /// `ALTER` of any object.
    Alter = "ALTER": "alter";
    /// `DROP` of any object.
    Drop = "DROP": "drop";
    /// `VACUUM`, also with `ANALYZE`.
    Vacuum = "VACUUM": "vacuum";
    /// `ANALYZE`, also spelled `ANALYSE`.
    Analyze = "ANALYZE": "analyze", "analyse";
}

impl SqlCommand {
    /// Returns the command of the first statement in `sql`. Leading comments, semicolons and
    /// opening parentheses are skipped.
    ///
    /// ```
    /// use howdah_sql::SqlCommand;
    ///
    /// let union = b"/* app */ (select 1) union select 2";
    /// assert_eq!(SqlCommand::from_sql(union), SqlCommand::Select);
    /// assert_eq!(SqlCommand::from_sql(b"start transaction read only"), SqlCommand::Begin);
    /// ```
    pub fn from_sql(sql: &[u8]) -> Self {
        let first = Lexer::new(sql).find(|token| match token.kind {
            TokenKind::Space | TokenKind::Comment => false,
            TokenKind::Punctuation => !matches!(token.text, b"(" | b";"),
            _ => true,
        });
        match first {
            None => Self::Empty,
            Some(token) if token.kind == TokenKind::Word => Self::from_keyword(token.text),
            Some(_) => Self::Other,
        }
    }

    /// Whether EXPLAIN accepts statements with this leading keyword.
    ///
    /// Source: manual, EXPLAIN. `CREATE … AS` is left out because `CREATE` has many other uses, and
    /// `EXECUTE` because it depends on the session.
    pub fn is_explainable(self) -> bool {
        use SqlCommand::{Declare, Delete, Insert, Merge, Select, Table, Update, Values, With};
        matches!(self, Select | Insert | Update | Delete | Merge | With | Values | Table | Declare)
    }
}

impl fmt::Display for SqlCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[test]
fn leading_keyword_determines_command() {
    let cases: [(&[u8], SqlCommand); 12] = [
        (b"select 1", SqlCommand::Select),
        (b" -- begin\n /* commit /* x */ */ Update t set a = 1", SqlCommand::Update),
        (b"((select 1))", SqlCommand::Select),
        (b";;begin", SqlCommand::Begin),
        (b"END", SqlCommand::Commit),
        (b"abort", SqlCommand::Rollback),
        (b"with x as (delete from t returning 1) select 1", SqlCommand::With),
        (b"selection", SqlCommand::Other),
        (b"'select'", SqlCommand::Other),
        (b"\"select\"", SqlCommand::Other),
        (b"", SqlCommand::Empty),
        (b" ; -- nothing", SqlCommand::Empty),
    ];
    for (sql, command) in cases {
        assert_eq!(SqlCommand::from_sql(sql), command, "{}", String::from_utf8_lossy(sql));
    }
}
