//! The option that selects the source of a probe's values.

/// Value of `--source`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum SourceName {
    /// The best available source, in this order
    #[default]
    Best,
    /// BPF programs in the kernel
    Bpf,
    /// The server's memory
    Memory,
    /// SQL statements; needs a URI
    Sql,
}
