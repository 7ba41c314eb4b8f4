//! The lines of a CSV file that its records begin in.
//!
//! The reader's own numbers are one too small in files whose lines end in CR LF: there a record begins at the LF of the line before
//! it. They are counted here instead, from the places where records begin.

/// Counts lines while a file is read from its start to its end.
pub(super) struct CsvLines<'b> {
    bytes: &'b [u8],
    /// The line that was counted last, and the place up to which its ends were counted.
    line: u64,
    counted: usize,
}

impl<'b> CsvLines<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, line: 1, counted: 0 }
    }

    /// The line that `record` begins in; it must not be before an earlier one.
    pub(super) fn line_of(&mut self, record: &csv::StringRecord) -> u64 {
        let start = record.position().map_or(0, csv::Position::byte) as usize;
        let rest = self.bytes.get(start..).unwrap_or_default();
        let start = start + rest.iter().take_while(|byte| b"\r\n".contains(byte)).count();
        let passed = self.bytes.get(self.counted..start).unwrap_or_default();
        self.line += passed.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.counted = start.max(self.counted);
        self.line
    }
}
