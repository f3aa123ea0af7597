//! Files and pipes into an [`Importer`](crate::Importer): which ones, in what order, on which
//! threads.

mod files;
mod framing_threads;
mod read_plan;
mod stream;

pub use self::{
    files::{ReadFilesError, ReadProgress, read_files, visit_files},
    read_plan::ReadPlanError,
    stream::{LogStream, ReceiverGone},
};
