//! Ids of connections, pools and workers. A connection's id contains its slot and a generation, so
//! that events of a closed connection never reach the next one in the same slot.

use std::fmt;

macro_rules! connection_id {
    ($(#[$doc:meta])* $name:ident, $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            index: u32,
            generation: u32,
        }

        impl $name {
            /// Creates the id of the connection that is the `generation`th in its slot.
            pub const fn new(index: u32, generation: u32) -> Self {
                Self { index, generation }
            }

            /// Returns the slot. Slots are small and dense, so a worker can store its state in a
            /// `Vec` indexed by them. A slot may be reused as soon as the core or the worker has
            /// closed the connection or handed it over.
            pub const fn index(self) -> usize {
                self.index as usize
            }

            /// Returns how many connections have been in the slot before.
            pub const fn generation(self) -> u32 {
                self.generation
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}.{}"), self.index, self.generation)
            }
        }
    };
}

connection_id! {
    /// Identifies a client of this worker.
    ClientId, "c"
}

connection_id! {
    /// Identifies a server connection of this worker.
    ServerId, "s"
}

/// Identifies a connection to a client or to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerId {
    /// The connection of a client.
    Client(ClientId),
    /// The connection to a server.
    Server(ServerId),
}

/// Identifies a pool: the connections to one database as one user. A pool has the same id in every
/// worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(
    /// Number of the pool; numbers start at 0.
    pub u32,
);

impl PoolId {
    /// Returns the number as an index into tables of pools.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identifies a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(
    /// Number of the worker, from 0 to [`WorkerId::MAX`], because cancel keys hold it in seven
    /// bits.
    pub u8,
);

impl WorkerId {
    /// The highest number that a worker can have.
    pub const MAX: u8 = 127;
}
