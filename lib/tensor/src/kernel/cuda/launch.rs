//! Loads kernels on first use and launches them.

use super::Gpu;
use super::driver::{check, dotted};
use crate::dtype::Dtype;
use crate::kernel::arg::TensorMap;
use crate::kernel::{Grid, Source, Value, cache, compile};
use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUmodule, CUtensorMap, CUtensorMapDataType,
};
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use unix::{Error, Exit, Result};

/// Bytes of shared memory that a block may use without an explicit opt-in.
const GRANTED: u32 = 48 << 10;

/// Source name, dtype and kernel name.
type KernelId = (&'static str, Dtype, &'static str);

/// The modules and functions loaded so far.
#[derive(Debug, Default)]
pub(super) struct Functions {
    functions: RwLock<HashMap<KernelId, &'static Function>>,
    /// Modules by source and dtype; locked during compilation, so that each is compiled only once.
    modules: Mutex<HashMap<(&'static str, Dtype), &'static Module>>,
}

#[derive(Debug)]
struct Module {
    handle: CUmodule,
    cubin: Vec<u8>,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

#[derive(Debug)]
struct Function {
    handle: CUfunction,
    /// Size of each parameter in bytes.
    parameters: Vec<usize>,
    /// Bytes of static shared memory.
    static_shared: u32,
    /// Bytes of dynamic shared memory that the function may currently use.
    granted: AtomicU32,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Gpu {
    /// Launches a kernel. Errors: it cannot be compiled or loaded, the grid or the arguments do not fit it, or an
    /// earlier kernel failed.
    pub(crate) fn launch(
        &self,
        source: &'static Source,
        dtype: Dtype,
        kernel: &'static str,
        grid: Grid,
        args: &[Value],
    ) -> Result<()> {
        self.enter()?;
        let said = || self.with_device(&describe(kernel, dtype, grid));
        let function = self.function(source, dtype, kernel).map_err(|e| e.context(said()))?;
        function.suits(args).map_err(|why| Error::bug(format!("{}: {why}", said())))?;
        self.grant(function, grid).map_err(|e| e.context(said()))?;
        let mut values: Vec<u64> = args.iter().map(|arg| arg.bits()).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let maps = args.iter().enumerate().filter_map(|(i, arg)| match arg {
            Value::TensorMap(map) => Some(encode(map, dtype).map(|map| (i, map))),
            _ => None,
        });
        let mut maps = maps.collect::<Result<Vec<_>>>().map_err(|e| e.context(said()))?;
        for (i, map) in &mut maps {
            pointers[*i] = ptr::from_mut(map).cast();
        }
        let ([x, y, z], [p, q, r]) = (grid.blocks, grid.threads);
        // SAFETY: one value per parameter, of its size, which the driver copies; the tensors whose addresses are among
        // them outlive the launch, because memory is reused in stream order.
        let result = unsafe {
            sys::cuLaunchKernel(
                function.handle,
                x,
                y,
                z,
                p,
                q,
                r,
                grid.shared,
                self.stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check(result, said)
    }

    fn function(
        &self,
        source: &'static Source,
        dtype: Dtype,
        kernel: &'static str,
    ) -> Result<&'static Function> {
        let name = (source.name, dtype, kernel);
        let known = self.functions.functions.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = known.get(&name) {
            return Ok(function);
        }
        drop(known);
        let module = self.module(source, dtype)?;
        let function: &'static Function = Box::leak(Box::new(self.find(module, source, kernel)?));
        let mut known = self.functions.functions.write().unwrap_or_else(PoisonError::into_inner);
        Ok(known.entry(name).or_insert(function))
    }

    fn module(&self, source: &'static Source, dtype: Dtype) -> Result<&'static Module> {
        let mut modules = self.functions.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (source.name, dtype);
        if let Some(module) = modules.get(&name) {
            return Ok(module);
        }
        let cubin = cache::cubin(source, dtype, &self.architecture)?;
        let mut module = ptr::null_mut();
        // SAFETY: a complete cubin, from the compiler or from a cache that verified it; the driver copies it.
        let result = unsafe { sys::cuModuleLoadData(&mut module, cubin.bytes.as_ptr().cast()) };
        check(result, || {
            let nvrtc =
                compile::version().map_or_else(|_| String::new(), |v| format!(" by NVRTC {v}"));
            format!(
                "loading {}.cu, compiled for {}{nvrtc}, into a driver of CUDA {} (an NVRTC of a newer CUDA \
                 than the driver's may be the cause; set LONGHAUL_NVRTC to another)",
                source.name,
                self.architecture,
                dotted(self.driver)
            )
        })?;
        let module: &'static Module =
            Box::leak(Box::new(Module { handle: module, cubin: cubin.bytes }));
        Ok(modules.entry(name).or_insert(module))
    }

    fn find(&self, module: &Module, source: &Source, kernel: &str) -> Result<Function> {
        let name = CString::new(kernel).map_err(|_| Error::bug("a kernel name contains NUL"))?;
        let mut handle = ptr::null_mut();
        // SAFETY: a loaded module and a NUL-terminated string.
        let result = unsafe { sys::cuModuleGetFunction(&mut handle, module.handle, name.as_ptr()) };
        check(result, || format!("there is no {kernel} in {}.cu", source.name))?;
        let mut shared = 0;
        let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        // SAFETY: a function of the module; writes to the integer.
        let result = unsafe { sys::cuFuncGetAttribute(&mut shared, which, handle) };
        check(result, || "reading its shared memory".into())?;
        let static_shared = u32::try_from(shared).unwrap_or(0);
        let parameters = compile::parameters(&module.cubin, kernel).ok_or_else(|| {
            Error::bug(format!("the machine code of {kernel} does not declare its parameters"))
        })?;
        let granted = AtomicU32::new(GRANTED.saturating_sub(static_shared));
        Ok(Function { handle, parameters, static_shared, granted })
    }

    /// Opts in to as much shared memory as the launch needs.
    fn grant(&self, function: &Function, grid: Grid) -> Result<()> {
        if grid.shared <= function.granted.load(Ordering::Relaxed) {
            return Ok(());
        }
        if function.static_shared.saturating_add(grid.shared) > self.shared {
            return Err(Error::new(
                Exit::Failure,
                format!(
                    "a block of {} has {} bytes of shared memory at most, {} of them static here; \
                     smaller attention heads need less",
                    self.name, self.shared, function.static_shared
                ),
            ));
        }
        // Opt in to all available shared memory at once, because another thread may need more than this one.
        let all = self.shared - function.static_shared;
        let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a loaded function; the value is below the limit of the GPU, hence below 2³¹.
        let result = unsafe { sys::cuFuncSetAttribute(function.handle, which, all as c_int) };
        check(result, || "requesting shared memory".into())?;
        function.granted.store(all, Ordering::Relaxed);
        Ok(())
    }
}

/// Encodes a tensor map for the driver.
fn encode(map: &TensorMap, dtype: Dtype) -> Result<CUtensorMap> {
    let mut encoded = CUtensorMap { opaque: [0; 16] };
    let kind = match dtype {
        Dtype::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        _ => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    // SAFETY: writes to the map; the arrays have one element per dimension, except the strides, which begin
    // with the second one. The driver does not read the tensor's memory.
    let result = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut encoded,
            kind,
            4,
            map.address as *mut c_void,
            map.extents.as_ptr(),
            map.strides.as_ptr(),
            map.boxes.as_ptr(),
            [1; 4].as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check(result, || format!("describing a tensor for copies of boxes, {map:?}"))?;
    Ok(encoded)
}

impl Function {
    /// Checks the arguments: the driver reads one per kernel parameter, regardless of how many are passed.
    fn suits(&self, args: &[Value]) -> Result<(), String> {
        let sizes: Vec<usize> = args.iter().map(|arg| size(*arg)).collect();
        match sizes == self.parameters {
            true => Ok(()),
            false => Err(format!(
                "arguments of {sizes:?} bytes for parameters of {:?} bytes",
                self.parameters
            )),
        }
    }
}

fn size(value: Value) -> usize {
    match value {
        Value::I32(_) | Value::U32(_) | Value::F32(_) | Value::TooLarge(_) => 4,
        Value::Pointer(_) | Value::I64(_) | Value::U64(_) | Value::F64(_) => 8,
        Value::TensorMap(_) => size_of::<CUtensorMap>(),
    }
}

/// Describes a launch for messages.
fn describe(kernel: &str, dtype: Dtype, grid: Grid) -> String {
    let ([x, y, z], [p, q, r]) = (grid.blocks, grid.threads);
    format!(
        "{kernel} ({dtype}, {x} x {y} x {z} blocks of {p} x {q} x {r} threads, {} bytes of shared memory)",
        grid.shared
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_held_against_parameters() {
        let function = Function {
            handle: ptr::null_mut(),
            parameters: vec![8, 4],
            static_shared: 0,
            granted: AtomicU32::new(0),
        };
        function.suits(&[Value::Pointer(0), Value::I32(1)]).unwrap();
        for wrong in [vec![], vec![Value::Pointer(0)], vec![Value::I32(1), Value::Pointer(0)]] {
            let message = function.suits(&wrong).unwrap_err();
            assert!(message.ends_with("for parameters of [8, 4] bytes"), "{message}");
        }
    }

    #[test]
    fn a_launch_is_told_with_all_its_numbers() {
        let grid = Grid::over([7, 2, 1], 256).shared(1024);
        let words = describe("layernorm_forward", Dtype::Bf16, grid);
        assert_eq!(
            words,
            "layernorm_forward (bf16, 7 x 2 x 1 blocks of 256 x 1 x 1 threads, 1024 bytes of shared memory)"
        );
    }
}
