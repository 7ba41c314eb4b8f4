//! Kernels for few columns: rows are unpacked in registers or in the first-level cache and read once. Plain numbers go row by
//! row. Blocks go eight rows at a time, so that the sum of each is added up sub-block after sub-block, in f32, as the kernels
//! for many columns do: a column gives the same bits, however many there are beside it. The rows behind those that are
//! multiplied are fetched meanwhile.

use crate::block::{BlockFormat, Blocks};

/// Columns of F32 rows for which these are turned: with more, columns that lie side by side are faster.
pub(super) const F32_AT_ONCE: usize = 4;
/// Columns whose sums the registers hold at once.
pub(super) const AT_ONCE: usize = 4;
/// The bytes of plain rows that are used for all columns before the next ones: they stay in the second-level cache.
pub(super) const BLOCK: usize = 128 << 10;
/// Rows of blocks that are multiplied together: a vector has the sum of each.
pub(super) const TOGETHER: usize = 8;

/// Whether blocks are unpacked without a way through memory.
pub(super) const fn is_unpacked_in_registers<B: Blocks>() -> bool {
    matches!(
        B::FORMAT,
        BlockFormat::Q4_0
            | BlockFormat::Q8_0
            | BlockFormat::Q4_K
            | BlockFormat::Q5_K
            | BlockFormat::Q6_K
    )
}

/// The scales and offsets of the sub-blocks of 256 numbers of some rows.
pub(super) struct Scales {
    pub(super) scale: [[f32; TOGETHER]; 16],
    pub(super) offset: [[f32; TOGETHER]; 16],
}

impl Scales {
    pub(super) const ZEROS: Self =
        Self { scale: [[0.0; TOGETHER]; 16], offset: [[0.0; TOGETHER]; 16] };
}

/// Writes what a row gave with each of some columns.
#[inline(always)]
pub(super) fn put<const N: usize>(out: &mut [&mut [f32]], row: usize, numbers: [f32; N]) {
    for (out, number) in out.iter_mut().zip(numbers) {
        out[row] = number;
    }
}

/// Columns of `inputs` numbers, filled up with zeros to sixteens, of each of which those with even places come first.
pub(super) fn unzipped(x: &[f32], inputs: usize) -> Vec<[f32; 16]> {
    let mut columns = Vec::with_capacity(x.len() / inputs * inputs.div_ceil(16));
    for column in x.chunks_exact(inputs) {
        for numbers in column.chunks(16) {
            let mut padded = [0.0; 16];
            padded[..numbers.len()].copy_from_slice(numbers);
            columns.push(std::array::from_fn(|at| padded[2 * (at % 8) + at / 8]));
        }
    }
    columns
}

/// Defines the kernels of a module for some instructions, with so many columns of plain numbers at once. The module has a function `dot::<WIDE>(sum, q, x)`, which adds the products
/// of four neighbouring bytes to each sum; `WIDE` says that `q` can be above 127.
macro_rules! few_columns {
    ($features:literal, $columns:literal) => {
        #[target_feature(enable = $features)]
        pub(in crate::product) fn float(
            format: BlockFormat,
            rows: &[u8],
            row_bytes: usize,
            x: &[f32],
            inputs: usize,
            out: &mut [&mut [f32]],
        ) {
            match format {
                BlockFormat::F32 if out.len() <= F32_AT_ONCE => {
                    return f32_few(rows, row_bytes, x, inputs, out);
                }
                BlockFormat::F32 => {
                    return f32_rows::multiply(rows, row_bytes, x, inputs, out, prefetch);
                }
                BlockFormat::BF16 => return bf16(rows, row_bytes, &unzipped(x, inputs), out),
                _ => {}
            }
            let (all, of_block) = (rows, (BLOCK / row_bytes).max(1));
            for (block, rows) in rows.chunks(of_block * row_bytes).enumerate() {
                for (x, out) in x.chunks($columns * inputs).zip(out.chunks_mut($columns)) {
                    for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
                        let number = block * of_block + number;
                        let ahead = &all[(number + 1) * row_bytes..];
                        match out.len() {
                            1 => put(out, number, f16_row::<1>(row, ahead, x, inputs)),
                            2 => put(out, number, f16_row::<2>(row, ahead, x, inputs)),
                            3 => put(out, number, f16_row::<3>(row, ahead, x, inputs)),
                            _ => put(out, number, f16_row::<4>(row, ahead, x, inputs)),
                        }
                    }
                }
            }
        }

        /// F32 weights with at most [`F32_AT_ONCE`] columns. Eight rows are turned, so that a vector has a number of each, and
        /// terms are added in the order of [`f32_rows`].
        #[target_feature(enable = $features)]
        fn f32_few(
            rows: &[u8],
            row_bytes: usize,
            x: &[f32],
            inputs: usize,
            out: &mut [&mut [f32]],
        ) {
            let x = |column: usize| &x[column * inputs..][..inputs];
            let columns = out.len();
            for (number, tile) in rows.chunks(TOGETHER * row_bytes).enumerate() {
                let count = tile.len() / row_bytes;
                // Rows that are missing are the last one again: what they give is not used.
                let mut of_rows: [&[u8]; TOGETHER] = [&[]; TOGETHER];
                for (at, row) in of_rows.iter_mut().enumerate() {
                    *row = &tile[at.min(count - 1) * row_bytes..][..row_bytes];
                }
                let ahead = &rows[rows.len().min((number + 1) * TOGETHER * row_bytes)..];
                let mut write = |sums: &[[f32; TOGETHER]]| {
                    for (out, sums) in out.iter_mut().zip(sums) {
                        out[number * TOGETHER..][..count].copy_from_slice(&sums[..count]);
                    }
                };
                match columns {
                    1 => write(&f32_eight(&of_rows, ahead, [x(0)])),
                    2 => write(&f32_eight(&of_rows, ahead, [x(0), x(1)])),
                    3 => write(&f32_eight(&of_rows, ahead, [x(0), x(1), x(2)])),
                    _ => write(&f32_eight(&of_rows, ahead, [x(0), x(1), x(2), x(3)])),
                }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn f32_eight<const N: usize>(
            rows: &[&[u8]; TOGETHER],
            ahead: &[u8],
            x: [&[f32]; N],
        ) -> [[f32; TOGETHER]; N] {
            let zeros = [_mm256_setzero_ps(); N];
            let mut totals = zeros;
            for range in f32_rows::depth_blocks(x[0].len()) {
                let mut sums = zeros;
                let lines = range.len() / 16;
                let rest = range.start + lines * 16..range.end;
                let mut of_rows: [&[[[u8; 16]; 4]]; TOGETHER] = [&[]; TOGETHER];
                for (own, row) in of_rows.iter_mut().zip(rows) {
                    *own = &row[4 * range.start..].as_chunks::<16>().0.as_chunks::<4>().0[..lines];
                }
                let columns = x.map(|x| &x[range.start..].as_chunks::<16>().0[..lines]);
                for at in 0..lines {
                    let next = 32 * (range.start + 16 * at);
                    prefetch(&ahead[next.min(ahead.len())..(next + 512).min(ahead.len())]);
                    for part in 0..4 {
                        let mut four = [_mm_setzero_si128(); TOGETHER];
                        for row in 0..TOGETHER {
                            four[row] = load128(&of_rows[row][at][part]);
                        }
                        let weights = words(four);
                        for place in 0..4 {
                            let weights = _mm256_castsi256_ps(weights[place]);
                            for column in 0..N {
                                let number = _mm256_set1_ps(columns[column][at][4 * part + place]);
                                sums[column] = _mm256_fmadd_ps(weights, number, sums[column]);
                            }
                        }
                    }
                }
                for place in rest {
                    let mut weights = [0.0; TOGETHER];
                    for row in 0..TOGETHER {
                        if let Some(bytes) = rows[row][4 * place..].first_chunk::<4>() {
                            weights[row] = f32::from_le_bytes(*bytes);
                        }
                    }
                    for column in 0..N {
                        let number = _mm256_set1_ps(x[column][place]);
                        sums[column] = _mm256_fmadd_ps(floats(&weights), number, sums[column]);
                    }
                }
                for column in 0..N {
                    totals[column] = _mm256_add_ps(totals[column], sums[column]);
                }
            }
            let mut numbers = [[0.0; TOGETHER]; N];
            for column in 0..N {
                numbers[column] = bytemuck::cast(totals[column]);
            }
            numbers
        }

        /// BF16 weights with columns that were [`unzipped`].
        #[target_feature(enable = $features)]
        fn bf16(rows: &[u8], row_bytes: usize, x: &[[f32; 16]], out: &mut [&mut [f32]]) {
            let of_column = x.len() / out.len().max(1);
            let (all, of_block) = (rows, (BLOCK / row_bytes).max(1));
            for (block, rows) in rows.chunks(of_block * row_bytes).enumerate() {
                for (x, out) in x.chunks($columns * of_column).zip(out.chunks_mut($columns)) {
                    for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
                        let number = block * of_block + number;
                        let ahead = &all[(number + 1) * row_bytes..];
                        match out.len() {
                            1 => put(out, number, sixteens::<1>(row, ahead, x, of_column)),
                            2 => put(out, number, sixteens::<2>(row, ahead, x, of_column)),
                            3 => put(out, number, sixteens::<3>(row, ahead, x, of_column)),
                            _ => put(out, number, sixteens::<4>(row, ahead, x, of_column)),
                        }
                    }
                }
            }
        }

        /// The products of a row of BF16 numbers with `N` columns. A vector of 32 bits has two numbers in each lane: the second as f32 with some more
        /// bits, which are cleared, and the first, which is shifted to its place. Each column's sum has the same terms in the same
        /// order whatever their number is.
        #[target_feature(enable = $features)]
        #[inline]
        fn sixteens<const N: usize>(
            row: &[u8],
            ahead: &[u8],
            x: &[[f32; 16]],
            of_column: usize,
        ) -> [f32; N] {
            let (all, few) = row.as_chunks::<32>();
            let (runs, rest) = all.as_chunks::<2>();
            let mut columns: [&[[f32; 16]]; N] = [&[]; N];
            for (column, x) in columns.iter_mut().zip(x.chunks_exact(of_column)) {
                *column = x;
            }
            let in_runs = columns.map(|x| &x.as_chunks::<2>().0[..runs.len()]);
            let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let mut sums = [[_mm256_setzero_ps(); 4]; N];
            let (lines, _) = ahead.as_chunks::<64>();
            for (at, run) in runs.iter().enumerate() {
                if let Some(line) = lines.get(at) {
                    prefetch(line);
                }
                for part in 0..2 {
                    let bits = load256(&run[part]);
                    let first = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
                    let second = _mm256_castsi256_ps(_mm256_and_si256(bits, upper));
                    for column in 0..N {
                        let [even, odd]: [__m256; 2] = bytemuck::cast(in_runs[column][at][part]);
                        let sums = &mut sums[column];
                        sums[2 * part] = _mm256_fmadd_ps(first, even, sums[2 * part]);
                        sums[2 * part + 1] = _mm256_fmadd_ps(second, odd, sums[2 * part + 1]);
                    }
                }
            }
            // Up to one more vector, and less than a vector, which zeros fill up.
            let mut last = [0; 32];
            last[..few.len()].copy_from_slice(few);
            let last = (!few.is_empty()).then_some(&last);
            for (part, weights) in rest.iter().chain(last).enumerate() {
                let bits = load256(weights);
                let first = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
                let second = _mm256_castsi256_ps(_mm256_and_si256(bits, upper));
                for column in 0..N {
                    let [even, odd]: [__m256; 2] =
                        bytemuck::cast(columns[column][2 * runs.len() + part]);
                    let [a, b, ..] = &mut sums[column];
                    *a = _mm256_fmadd_ps(first, even, *a);
                    *b = _mm256_fmadd_ps(second, odd, *b);
                }
            }
            let mut totals = [0.0; N];
            for column in 0..N {
                let [a, b, c, d] = sums[column];
                totals[column] = total([_mm256_add_ps(a, b), _mm256_add_ps(c, d)]);
            }
            totals
        }

        /// The products of a row of F16 numbers with `N` columns. Each column's sum has the same terms in the same order whatever
        /// their number is.
        #[target_feature(enable = $features)]
        #[inline]
        fn f16_row<const N: usize>(row: &[u8], ahead: &[u8], x: &[f32], inputs: usize) -> [f32; N] {
            const BYTES: usize = 16;
            let (all, few) = row.as_chunks::<BYTES>();
            let (runs, rest) = all.as_chunks::<4>();
            let mut columns: [&[f32]; N] = [&[]; N];
            for (column, x) in columns.iter_mut().zip(x.chunks_exact(inputs)) {
                *column = x;
            }
            // All have as many runs as the row: no index is checked again below.
            let in_runs = columns.map(|x| &x.as_chunks::<32>().0[..runs.len()]);
            let mut sums = [[_mm256_setzero_ps(); 4]; N];
            let (lines, _) = ahead.as_chunks::<64>();
            for (at, run) in runs.iter().enumerate() {
                if let Some(line) = lines.get(at) {
                    prefetch(line);
                }
                for part in 0..4 {
                    let weights = _mm256_cvtph_ps(load128(&run[part]));
                    for column in 0..N {
                        let numbers = floats(&in_runs[column][at].as_chunks::<8>().0[part]);
                        let sum = &mut sums[column][part];
                        *sum = _mm256_fmadd_ps(weights, numbers, *sum);
                    }
                }
            }
            // Up to three more vectors, and less than a vector, which zeros fill up.
            let mut last = [0; BYTES];
            last[..few.len()].copy_from_slice(few);
            let last = (!few.is_empty()).then_some(&last);
            for (part, weights) in rest.iter().chain(last).enumerate() {
                let weights = _mm256_cvtph_ps(load128(weights));
                for column in 0..N {
                    let from = &columns[column][32 * runs.len() + 8 * part..];
                    let mut numbers = [0.0; 8];
                    let count = from.len().min(8);
                    numbers[..count].copy_from_slice(&from[..count]);
                    let sum = &mut sums[column][part];
                    *sum = _mm256_fmadd_ps(weights, floats(&numbers), *sum);
                }
            }
            let mut totals = [0.0; N];
            for column in 0..N {
                let [a, b, c, d] = sums[column];
                totals[column] = total([_mm256_add_ps(a, b), _mm256_add_ps(c, d)]);
            }
            totals
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn total(sums: [__m256; 2]) -> f32 {
            let numbers: [f32; 8] = bytemuck::cast(_mm256_add_ps(sums[0], sums[1]));
            let [a, b, c, d, e, f, g, h] = numbers;
            ((a + e) + (b + f)) + ((c + g) + (d + h))
        }

        /// Eight rows at a time, for at most [`FEW`] columns. What a row gives with a column is added up as `many_columns` does.
        #[target_feature(enable = $features)]
        pub(in crate::product) fn few<B: Blocks>(
            rows: &[u8],
            row_bytes: usize,
            x: &Activations,
            out: &mut [&mut [f32]],
        ) {
            let columns = out.len();
            let all = rows;
            for (number, rows) in rows.chunks(TOGETHER * row_bytes).enumerate() {
                let ahead = &all[all.len().min((number + 1) * TOGETHER * row_bytes)..];
                let ahead = &ahead[..ahead.len().min(TOGETHER * row_bytes)];
                let count = rows.len() / row_bytes;
                // Rows that are missing are the last one again: what they give is not used.
                let mut of_rows: [&[u8]; TOGETHER] = [&[]; TOGETHER];
                for (at, row) in of_rows.iter_mut().enumerate() {
                    *row = &rows[at.min(count - 1) * row_bytes..][..row_bytes];
                }
                let mut write = |column: usize, sums: &[[f32; TOGETHER]]| {
                    for (out, sums) in out[column..].iter_mut().zip(sums) {
                        out[number * TOGETHER..][..count].copy_from_slice(&sums[..count]);
                    }
                };
                // What is unpacked to memory is used for all columns.
                let at_once = if is_unpacked_in_registers::<B>() { AT_ONCE } else { FEW };
                for first in (0..columns).step_by(at_once) {
                    let x = |column: usize| x.column((first + column).min(columns - 1));
                    match columns - first {
                        1 => write(first, &eight_rows::<B, 1>(&of_rows, ahead, [x(0)])),
                        2 => write(first, &eight_rows::<B, 2>(&of_rows, ahead, [x(0), x(1)])),
                        3 => write(first, &eight_rows::<B, 3>(&of_rows, ahead, [x(0), x(1), x(2)])),
                        many if many == 4 || at_once == AT_ONCE => {
                            let x = [x(0), x(1), x(2), x(3)];
                            write(first, &eight_rows::<B, 4>(&of_rows, ahead, x));
                        }
                        _ => {
                            let x = [x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7)];
                            write(first, &eight_rows::<B, FEW>(&of_rows, ahead, x));
                        }
                    }
                }
            }
        }

        /// The products of eight rows with `N` columns.
        #[target_feature(enable = $features)]
        #[inline]
        fn eight_rows<B: Blocks, const N: usize>(
            rows: &[&[u8]; TOGETHER],
            ahead: &[u8],
            x: [&[ActivationGroup]; N],
        ) -> [[f32; TOGETHER]; N] {
            let mut totals = [_mm256_setzero_ps(); N];
            let mut scales = Scales::ZEROS;
            let (bytes, all) = (WeightGroup::bytes::<B>(), rows[0].len());
            for at in 0..all.div_ceil(bytes) {
                let of = at * bytes..all.min((at + 1) * bytes);
                let next = TOGETHER * of.start..TOGETHER * of.end;
                prefetch(&ahead[next.start.min(ahead.len())..next.end.min(ahead.len())]);
                let rows = rows.map(|row| &row[of.clone()]);
                let x = x.map(|x| &x[at]);
                totals = match B::FORMAT {
                    BlockFormat::Q4_0 if of.len() == bytes => q4_0::<B, N>(&rows, x, totals),
                    BlockFormat::Q8_0 if of.len() == bytes => q8_0::<B, N>(&rows, x, totals),
                    BlockFormat::Q4_K => q4_or_q5_k::<B, 144, N>(&rows, x, totals),
                    BlockFormat::Q5_K => q4_or_q5_k::<B, 176, N>(&rows, x, totals),
                    BlockFormat::Q6_K => q6_k::<B, N>(&rows, x, totals),
                    _ => unpacked::<B, N>(&rows, x, totals, &mut scales),
                };
            }
            let mut sums = [[0.0; TOGETHER]; N];
            for column in 0..N {
                sums[column] = bytemuck::cast(totals[column]);
            }
            sums
        }

        /// Adds what 256 numbers of eight rows give. `q` makes a vector of a row's 32 integers from place 32 `at` on, and
        /// `scales` the scale and the offset that a sub-block has in each row.
        #[target_feature(enable = $features)]
        #[inline]
        fn added<B: Blocks, const N: usize>(
            x: [&ActivationGroup; N],
            mut totals: [__m256; N],
            scales: impl Fn(usize) -> (__m256, __m256),
            q: impl Fn(usize, usize) -> __m256i,
        ) -> [__m256; N] {
            for at in 0..8 {
                let of_subs = match B::SUB {
                    32 => [scales(at); 2],
                    _ => [scales(2 * at), scales(2 * at + 1)],
                };
                let mut weights = [_mm256_setzero_si256(); TOGETHER];
                for row in 0..TOGETHER {
                    weights[row] = q(row, at);
                }
                for column in 0..N {
                    let (group, mut total) = (x[column], totals[column]);
                    let numbers = part(&group.q, at);
                    let sum = |row: usize| dot_wide::<B>(weights[row], numbers);
                    let pair = |row: usize| {
                        let (first, second) = (sum(row), sum(row + 1));
                        let lower = _mm256_unpacklo_epi32(first, second);
                        _mm256_add_epi32(lower, _mm256_unpackhi_epi32(first, second))
                    };
                    let four = |row: usize| {
                        let (first, second) = (pair(row), pair(row + 2));
                        let lower = _mm256_unpacklo_epi64(first, second);
                        _mm256_add_epi32(lower, _mm256_unpackhi_epi64(first, second))
                    };
                    // Of each row, the sum over the lower and that over the upper half.
                    let (first, second) = (four(0), four(4));
                    let lower = _mm256_permute2x128_si256::<0x20>(first, second);
                    let upper = _mm256_permute2x128_si256::<0x31>(first, second);
                    if B::SUB == 32 {
                        let integers = _mm256_add_epi32(lower, upper);
                        let of = (group.scale[at], group.sum32[at]);
                        total = scaled(integers, of_subs[0], of, total);
                    } else {
                        let of = (group.scale[at], group.sum16[2 * at]);
                        total = scaled(lower, of_subs[0], of, total);
                        let of = (group.scale[at], group.sum16[2 * at + 1]);
                        total = scaled(upper, of_subs[1], of, total);
                    }
                    totals[column] = total;
                }
            }
            totals
        }

        /// Adds the integers of a sub-block with its scale and offset, as `tile_product` does.
        #[target_feature(enable = $features)]
        #[inline]
        fn scaled(
            integers: __m256i,
            (of_rows, offsets): (__m256, __m256),
            (scale, sum): (f32, f32),
            total: __m256,
        ) -> __m256 {
            let scale = _mm256_mul_ps(of_rows, _mm256_set1_ps(scale));
            let total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), scale, total);
            _mm256_fmadd_ps(offsets, _mm256_set1_ps(sum), total)
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn dot_wide<B: Blocks>(q: __m256i, x: __m256i) -> __m256i {
            match B::FORMAT {
                BlockFormat::Q8_0 => dot::<true>(_mm256_setzero_si256(), q, x),
                _ => dot::<false>(_mm256_setzero_si256(), q, x),
            }
        }

        /// Eight numbers of each of eight rows become a vector of rows for each number.
        #[target_feature(enable = $features)]
        #[inline]
        fn transpose(rows: [__m256; TOGETHER], numbers: &mut [[f32; TOGETHER]; 8]) {
            let mut pairs = [_mm256_setzero_ps(); 8];
            for at in 0..4 {
                pairs[2 * at] = _mm256_unpacklo_ps(rows[2 * at], rows[2 * at + 1]);
                pairs[2 * at + 1] = _mm256_unpackhi_ps(rows[2 * at], rows[2 * at + 1]);
            }
            let mut fours = [_mm256_setzero_ps(); 8];
            for half in 0..2 {
                let [a, b, c, d] = [0, 1, 2, 3].map(|at| pairs[4 * half + at]);
                fours[4 * half] = _mm256_shuffle_ps::<0x44>(a, c);
                fours[4 * half + 1] = _mm256_shuffle_ps::<0xee>(a, c);
                fours[4 * half + 2] = _mm256_shuffle_ps::<0x44>(b, d);
                fours[4 * half + 3] = _mm256_shuffle_ps::<0xee>(b, d);
            }
            for at in 0..4 {
                let (first, second) = (fours[at], fours[at + 4]);
                numbers[at] = bytemuck::cast(_mm256_permute2f128_ps::<0x20>(first, second));
                numbers[at + 4] = bytemuck::cast(_mm256_permute2f128_ps::<0x31>(first, second));
            }
        }

        /// The scales of a sub-block, and the offsets of its integers, of which `B::ZERO` stands for 0.
        #[target_feature(enable = $features)]
        #[inline]
        fn above_zero<B: Blocks>(scale: __m256) -> (__m256, __m256) {
            (scale, _mm256_mul_ps(scale, _mm256_set1_ps(-f32::from(B::ZERO))))
        }

        /// Of sixteen bytes of each of eight rows, the four words: a vector of rows each.
        #[target_feature(enable = $features)]
        #[inline]
        fn words(rows: [__m128i; TOGETHER]) -> [__m256i; 4] {
            let [a, b, c, d] = [0, 1, 2, 3].map(|row| _mm256_set_m128i(rows[row + 4], rows[row]));
            let (ab, ab_upper) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd, cd_upper) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ab_upper, cd_upper),
                _mm256_unpackhi_epi64(ab_upper, cd_upper),
            ]
        }

        /// The numbers of 16 bits in the lower halves of eight words, whose upper halves are 0.
        #[target_feature(enable = $features)]
        #[inline]
        fn halves(words: __m256i) -> __m256 {
            let packed = _mm256_packus_epi32(words, words);
            _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(packed)))
        }

        /// The number of 16 bits that each of eight rows has.
        #[target_feature(enable = $features)]
        #[inline]
        fn halves_of(bytes: impl Fn(usize) -> [u8; 2]) -> __m256 {
            let half = |row: usize| i16::from_le_bytes(bytes(row));
            _mm256_cvtph_ps(_mm_setr_epi16(
                half(0),
                half(1),
                half(2),
                half(3),
                half(4),
                half(5),
                half(6),
                half(7),
            ))
        }

        /// The scales of one block in each row, which are its first two bytes.
        #[target_feature(enable = $features)]
        #[inline]
        fn scales_of<const BYTES: usize>(
            blocks: &[&[[u8; BYTES]; 8]; TOGETHER],
            at: usize,
        ) -> __m256 {
            halves_of(|row| [blocks[row][at][0], blocks[row][at][1]])
        }

        /// Blocks with one scale and 32 integers, which `integers` unpacks to a vector.
        #[target_feature(enable = $features)]
        #[inline]
        fn simple<B: Blocks, const BYTES: usize, const N: usize>(
            rows: &[&[u8]; TOGETHER],
            x: [&ActivationGroup; N],
            totals: [__m256; N],
            integers: impl Fn(&[u8; BYTES]) -> __m256i,
        ) -> [__m256; N] {
            let mut blocks: [&[[u8; BYTES]; 8]; TOGETHER] = [&[[0; BYTES]; 8]; TOGETHER];
            for row in 0..TOGETHER {
                if let Some(all) = rows[row].as_chunks::<BYTES>().0.first_chunk::<8>() {
                    blocks[row] = all;
                }
            }
            let scales = |at: usize| above_zero::<B>(scales_of(&blocks, at));
            added::<B, N>(x, totals, scales, |row, at| integers(&blocks[row][at]))
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn q4_0<B: Blocks, const N: usize>(
            rows: &[&[u8]; TOGETHER],
            x: [&ActivationGroup; N],
            totals: [__m256; N],
        ) -> [__m256; N] {
            simple::<B, 18, N>(rows, x, totals, |block| {
                let Some(packed) = block[2..].first_chunk::<16>() else {
                    return _mm256_setzero_si256();
                };
                let low = load128(packed);
                let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
                _mm256_and_si256(both, _mm256_set1_epi8(15))
            })
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn q8_0<B: Blocks, const N: usize>(
            rows: &[&[u8]; TOGETHER],
            x: [&ActivationGroup; N],
            totals: [__m256; N],
        ) -> [__m256; N] {
            simple::<B, 34, N>(rows, x, totals, |block| {
                let Some(packed) = block[2..].first_chunk::<32>() else {
                    return _mm256_setzero_si256();
                };
                _mm256_xor_si256(load256(packed), _mm256_set1_epi8(-128))
            })
        }

        /// Q4_K in 144 and Q5_K in 176 bytes: both begin with the same scales, and end with the lowest four bits.
        #[target_feature(enable = $features)]
        #[inline]
        fn q4_or_q5_k<B: Blocks, const BYTES: usize, const N: usize>(
            rows: &[&[u8]; TOGETHER],
            x: [&ActivationGroup; N],
            totals: [__m256; N],
        ) -> [__m256; N] {
            let mut blocks: [&[u8; BYTES]; TOGETHER] = [&[0; BYTES]; TOGETHER];
            let mut headers = [_mm_setzero_si128(); TOGETHER];
            let mut fifth_bits = [_mm256_setzero_si256(); TOGETHER];
            for row in 0..TOGETHER {
                if let Some(block) = rows[row].first_chunk::<BYTES>() {
                    blocks[row] = block;
                }
                headers[row] = load128(&blocks[row].as_chunks::<16>().0[0]);
                if let (BlockFormat::Q5_K, Some(bits)) =
                    (B::FORMAT, blocks[row][16..].first_chunk::<32>())
                {
                    fifth_bits[row] = load256(bits);
                }
            }
            let [both, a, b, c] = words(headers);
            let lower = _mm256_and_si256(both, _mm256_set1_epi32(0xffff));
            let scale = halves(lower);
            let least = halves(_mm256_srli_epi32::<16>(both));
            let least = _mm256_xor_ps(least, _mm256_set1_ps(-0.0));
            // Six bits each: those of the first four sub-blocks are whole, the others come from two places.
            let six = _mm256_set1_epi8(63);
            let (four, upper) = (_mm256_set1_epi8(15), _mm256_set1_epi8(48));
            let two = |word| _mm256_and_si256(_mm256_srli_epi32::<2>(word), upper);
            let scales =
                [_mm256_and_si256(a, six), _mm256_or_si256(_mm256_and_si256(c, four), two(a))];
            let offsets = [
                _mm256_and_si256(b, six),
                _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32::<4>(c), four), two(b)),
            ];
            let byte = |word: __m256i, number: usize| {
                let places = _mm256_set1_epi32(8 * number as i32);
                let byte = _mm256_srlv_epi32(word, places);
                _mm256_cvtepi32_ps(_mm256_and_si256(byte, _mm256_set1_epi32(255)))
            };
            let of_sub = |sub: usize| {
                let integer = byte(scales[sub / 4], sub % 4);
                let offset = byte(offsets[sub / 4], sub % 4);
                (_mm256_mul_ps(scale, integer), _mm256_mul_ps(least, offset))
            };
            added::<B, N>(x, totals, of_sub, |row, at| {
                let packed = load256(&blocks[row][BYTES - 128..].as_chunks::<32>().0[at / 2]);
                let shifted = if at % 2 == 0 { packed } else { _mm256_srli_epi16::<4>(packed) };
                let low = _mm256_and_si256(shifted, four);
                if B::FORMAT as u8 != BlockFormat::Q5_K as u8 {
                    return low;
                }
                let bit =
                    _mm256_and_si256(fifth_bits[row], _mm256_set1_epi8((1_u8 << at).cast_signed()));
                let is_set = _mm256_cmpeq_epi8(bit, _mm256_setzero_si256());
                _mm256_or_si256(low, _mm256_andnot_si256(is_set, _mm256_set1_epi8(16)))
            })
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn q6_k<B: Blocks, const N: usize>(
            rows: &[&[u8]; TOGETHER],
            x: [&ActivationGroup; N],
            totals: [__m256; N],
        ) -> [__m256; N] {
            let mut blocks: [&[u8; 210]; TOGETHER] = [&[0; 210]; TOGETHER];
            let mut integers = [_mm_setzero_si128(); TOGETHER];
            for row in 0..TOGETHER {
                if let Some(block) = rows[row].first_chunk::<210>() {
                    blocks[row] = block;
                }
                integers[row] = load128(&blocks[row].as_chunks::<16>().0[12]);
            }
            let scale = halves_of(|row| [blocks[row][208], blocks[row][209]]);
            let integers = words(integers);
            let of_sub = |sub: usize| {
                let places = _mm256_set1_epi32(24 - 8 * (sub % 4) as i32);
                let byte = _mm256_srai_epi32::<24>(_mm256_sllv_epi32(integers[sub / 4], places));
                above_zero::<B>(_mm256_mul_ps(scale, _mm256_cvtepi32_ps(byte)))
            };
            let (four, two) = (_mm256_set1_epi8(15), _mm256_set1_epi8(3));
            added::<B, N>(x, totals, of_sub, |row, at| {
                let (half, at) = (at / 4, at % 4);
                let low = load256(&blocks[row].as_chunks::<32>().0[2 * half + at % 2]);
                let high = load256(&blocks[row][128..].as_chunks::<32>().0[half]);
                let low = if at < 2 { low } else { _mm256_srli_epi16::<4>(low) };
                let high = match at {
                    0 => high,
                    1 => _mm256_srli_epi16::<2>(high),
                    2 => _mm256_srli_epi16::<4>(high),
                    _ => _mm256_srli_epi16::<6>(high),
                };
                let bits = _mm256_slli_epi16::<4>(_mm256_and_si256(high, two));
                _mm256_or_si256(_mm256_and_si256(low, four), bits)
            })
        }

        /// A function of its own: as a part of a larger one, the compiler unpacks number by number.
        #[target_feature(enable = $features)]
        #[inline(never)]
        fn unpack<B: Blocks>(group: &mut WeightGroup, blocks: &[u8]) {
            group.unpack::<B>(blocks);
        }

        /// The other formats, and what is left of rows that are no multiple of 256 long, by way of memory that the first-level cache holds.
        #[target_feature(enable = $features)]
        #[inline]
        fn unpacked<B: Blocks, const N: usize>(
            rows: &[&[u8]; TOGETHER],
            x: [&ActivationGroup; N],
            totals: [__m256; N],
            scales: &mut Scales,
        ) -> [__m256; N] {
            let mut groups = [WeightGroup::EMPTY; TOGETHER];
            for row in 0..TOGETHER {
                unpack::<B>(&mut groups[row], rows[row]);
            }
            for half in 0..32 / B::SUB {
                let (mut scale, mut offset) =
                    ([_mm256_setzero_ps(); TOGETHER], [_mm256_setzero_ps(); TOGETHER]);
                for row in 0..TOGETHER {
                    scale[row] = floats(&groups[row].scale.as_chunks::<8>().0[half]);
                    offset[row] = floats(&groups[row].offset.as_chunks::<8>().0[half]);
                }
                transpose(scale, &mut scales.scale.as_chunks_mut::<8>().0[half]);
                transpose(offset, &mut scales.offset.as_chunks_mut::<8>().0[half]);
            }
            let scales = |sub: usize| (floats(&scales.scale[sub]), floats(&scales.offset[sub]));
            added::<B, N>(x, totals, scales, |row, at| part(&groups[row].q, at))
        }
    };
}

pub(super) use few_columns;
