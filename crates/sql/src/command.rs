//! [`SqlCommand`]: the leading keyword of a statement.

use std::fmt;

use crate::lexer::{Lexer, TokenKind};

macro_rules! commands {
    ($($(#[$doc:meta])* $variant:ident = $name:literal: $($words:literal),+;)*) => {
        /// The kind of statement, by its leading keyword.
        ///
        /// Only the first keywords of the first statement are examined: a `WITH` may contain a
        /// DELETE, and an `EXPLAIN` may execute.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum SqlCommand {
            $($(#[$doc])* $variant,)*
            /// No statement at all: only white space, comments and semicolons.
            Empty,
            /// A keyword that is not in the table of commands.
            Other,
        }

        impl SqlCommand {
            /// The keyword, in upper case.
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
    /// `SELECT`, with or without parentheses around it.
    Select = "SELECT": "select";
    /// `INSERT`.
    Insert = "INSERT": "insert";
    /// `UPDATE`.
    Update = "UPDATE": "update";
    /// `DELETE`.
    Delete = "DELETE": "delete";
    /// `MERGE`.
    Merge = "MERGE": "merge";
    /// `WITH`, whatever the main statement is.
    With = "WITH": "with";
    /// `VALUES`.
    Values = "VALUES": "values";
    /// `TABLE`.
    Table = "TABLE": "table";
    /// `BEGIN` or `START TRANSACTION`.
    Begin = "BEGIN": "begin", "start";
    /// `COMMIT` or `END`.
    Commit = "COMMIT": "commit", "end";
    /// `ROLLBACK` or `ABORT`, also `ROLLBACK TO`.
    Rollback = "ROLLBACK": "rollback", "abort";
    /// `SAVEPOINT`.
    Savepoint = "SAVEPOINT": "savepoint";
    /// `RELEASE`.
    Release = "RELEASE": "release";
    /// `PREPARE`, of a statement or of a transaction.
    Prepare = "PREPARE": "prepare";
    /// `EXECUTE`.
    Execute = "EXECUTE": "execute";
    /// `DEALLOCATE`.
    Deallocate = "DEALLOCATE": "deallocate";
    /// `DECLARE`.
    Declare = "DECLARE": "declare";
    /// `FETCH` or `MOVE`.
    Fetch = "FETCH": "fetch", "move";
    /// `CLOSE`.
    Close = "CLOSE": "close";
    /// `COPY`.
    Copy = "COPY": "copy";
    /// `SET`.
    Set = "SET": "set";
    /// `RESET`.
    Reset = "RESET": "reset";
    /// `SHOW`.
    Show = "SHOW": "show";
    /// `DISCARD`.
    Discard = "DISCARD": "discard";
    /// `EXPLAIN`.
    Explain = "EXPLAIN": "explain";
    /// `LOCK`.
    Lock = "LOCK": "lock";
    /// `LISTEN`.
    Listen = "LISTEN": "listen";
    /// `UNLISTEN`.
    Unlisten = "UNLISTEN": "unlisten";
    /// `NOTIFY`.
    Notify = "NOTIFY": "notify";
    /// `CALL`.
    Call = "CALL": "call";
    /// `DO`.
    Do = "DO": "do";
    /// `TRUNCATE`.
    Truncate = "TRUNCATE": "truncate";
    /// `CREATE`.
    Create = "CREATE": "create";
    /// `ALTER`.
    Alter = "ALTER": "alter";
    /// `DROP`.
    Drop = "DROP": "drop";
    /// `VACUUM`.
    Vacuum = "VACUUM": "vacuum";
    /// `ANALYZE`.
    Analyze = "ANALYZE": "analyze", "analyse";
}

impl SqlCommand {
    /// The command of the first statement in `sql`. Leading comments, semicolons and opening
    /// parentheses are skipped.
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

    /// Whether plain EXPLAIN accepts a statement with this leading keyword.
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
