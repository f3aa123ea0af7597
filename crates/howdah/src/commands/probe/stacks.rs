//! Prints the stacks of long events as text.

use std::io::{self, Write as _};

use howdah_probe::stacks::CallStack;

use crate::context::CommandContext;

/// Prints one line per function, innermost first, and how reliable the stack is.
pub(super) fn print(ctx: &CommandContext, stack: Option<&CallStack>) -> io::Result<()> {
    let Some(stack) = stack else { return Ok(()) };
    let mut out = ctx.stdout();
    for frame in &stack.frames {
        writeln!(out, "    at {frame}")?;
    }
    match stack.end.explanation() {
        Some(remark) => writeln!(out, "    ({remark})"),
        None => Ok(()),
    }
}
