//! Rows whose memory several threads can hold on to, so that short products go to helpers that wait awake.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use super::{
    Activations, Instructions, PackedRows, ProductError, WORTH_SPLITTING, dispatch, rows_of_part,
    spinning_threads,
};
use crate::block::BlockFormat;

/// Up to so many columns a product goes to the helpers, whose parts are put together in the end. Beyond, that takes longer
/// than to wake a thread.
const HELPED_COLUMNS: usize = 128;

/// Rows of a matrix in their blocks, in memory that is cheap to clone. Rows are outputs, the numbers of a row are inputs.
#[derive(Clone, Debug)]
pub struct SharedRows<M> {
    memory: M,
    format: BlockFormat,
    rows: usize,
    cols: usize,
}

/// The columns of a short product, as the kernels take them.
enum Columns {
    Quantized(Arc<Activations>),
    /// Packed for the kernel that multiplies them.
    Packed(dispatch::RowsProduct),
    Plain(Arc<Vec<f32>>),
}

/// The columns of a thread's last short product with quantised rows: queries, keys and values are products with the same ones, so are
/// the two halves of a gated feed-forward.
struct LastColumns {
    x: Arc<Vec<f32>>,
    count: usize,
    quantized: Arc<Activations>,
}

thread_local! {
    static LAST: RefCell<Option<LastColumns>> = const { RefCell::new(None) };
}

/// `x` in 8 bits, from the last product if that had the same columns.
fn quantized(x: &Arc<Vec<f32>>, cols: usize, count: usize) -> Option<Arc<Activations>> {
    LAST.with_borrow_mut(|last| {
        if let Some(known) = last
            && known.count == count
            && known.x == *x
        {
            return Some(Arc::clone(&known.quantized));
        }
        let quantized = Arc::new(Activations::with(Instructions::best(), x, cols, count).ok()?);
        *last = Some(LastColumns { x: Arc::clone(x), count, quantized: Arc::clone(&quantized) });
        Some(quantized)
    })
}

impl<M: AsRef<[u8]> + Clone + Send + Sync + 'static> SharedRows<M> {
    /// `rows` rows of `cols` numbers each, stored as `format` in `memory`.
    pub fn new(
        format: BlockFormat,
        rows: usize,
        cols: usize,
        memory: M,
    ) -> Result<Self, ProductError> {
        PackedRows::new(format, rows, cols, memory.as_ref())?;
        Ok(Self { memory, format, rows, cols })
    }

    /// The product with `columns` columns of f32 numbers, one after the other in `x`: a column for each of them, with a number for
    /// each row.
    pub fn times(&self, x: &Arc<Vec<f32>>, columns: usize) -> Result<Vec<f32>, ProductError> {
        if let Some(product) = self.times_with_helpers(x, columns) {
            return Ok(product);
        }
        let rows = PackedRows::new(self.format, self.rows, self.cols, self.memory.as_ref())?;
        let mut out = vec![0.0; self.rows.saturating_mul(columns)];
        rows.times(x, columns, &mut out)?;
        Ok(out)
    }

    /// None where a product is too short or too long for it, something is wrong with it, or there are no helpers to be had.
    fn times_with_helpers(&self, x: &Arc<Vec<f32>>, columns: usize) -> Option<Vec<f32>> {
        let (rows, cols) = (self.rows, self.cols);
        let threads = rayon::current_num_threads();
        let few = columns > 0 && columns <= HELPED_COLUMNS;
        let fits = few && cols > 0 && x.len() == cols * columns;
        if !fits || threads < 2 || rows * cols * columns < WORTH_SPLITTING {
            return None;
        }
        let instructions = Instructions::best();
        let x = match self.format.is_quantized() {
            true => Columns::Quantized(quantized(x, cols, columns)?),
            false => match dispatch::many_floats(instructions, self.format, x, cols, columns) {
                Some(product) => Columns::Packed(product),
                None => Columns::Plain(Arc::clone(x)),
            },
        };
        let part = rows_of_part(rows, cols, columns, threads);
        let parts = rows.div_ceil(part);
        let results: Arc<Vec<OnceLock<Vec<f32>>>> =
            Arc::new((0..parts).map(|_| OnceLock::new()).collect());
        let (memory, format, written) = (self.memory.clone(), self.format, Arc::clone(&results));
        let row_bytes = format.bytes_of(cols).ok()?;
        let done = spinning_threads::share_out(parts, move |number| {
            let of = number * part..rows.min((number + 1) * part);
            let blocks = &memory.as_ref()[of.start * row_bytes..of.end * row_bytes];
            let mut numbers = vec![0.0; of.len() * columns];
            let mut out: Vec<&mut [f32]> = numbers.chunks_exact_mut(of.len()).collect();
            match &x {
                Columns::Quantized(x) => {
                    dispatch::quantized(format, blocks, row_bytes, x, &mut out);
                }
                Columns::Packed(product) => product(blocks, row_bytes, &mut out),
                Columns::Plain(x) => {
                    dispatch::float(instructions, format, blocks, row_bytes, x, cols, &mut out);
                }
            }
            // Each part is done once.
            let _ = written[number].set(numbers);
        });
        if !done {
            return None;
        }
        let mut product = Vec::with_capacity(rows * columns);
        for column in 0..columns {
            for result in results.iter() {
                let numbers = result.get()?;
                let each = numbers.len() / columns;
                product.extend_from_slice(&numbers[column * each..(column + 1) * each]);
            }
        }
        Some(product)
    }
}
