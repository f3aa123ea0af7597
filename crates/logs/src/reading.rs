//! Reads files and pipes into an [`Importer`](crate::Importer): selects the files, orders them, and
//! distributes the work over threads.

mod files;
mod framing_threads;
mod read_plan;
mod stream;

pub use self::{
    files::{ReadFilesError, ReadProgress, read_files, visit_files},
    read_plan::ReadPlanError,
    stream::{LogStream, ReceiverGone, StreamPosition},
};
