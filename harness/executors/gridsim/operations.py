"""Every operation of the dialects that Triton's IR is written in, and why gridsim refuses some of them."""

from __future__ import annotations

#: All that Triton 3.6.0, 3.7.1, 3.8.0 and 3.9.0 register in these dialects; of other dialects, what TTIR shows.
#: `tests/test_gridsim_operations.py` asks the installed Triton whether one is missing here.
DIALECTS = {
    "tt": """
        addptr advance approx_divf assert atomic_cas atomic_load atomic_poll atomic_rmw atomic_store bitcast
        broadcast call cat clampf descriptor_gather descriptor_load descriptor_reduce descriptor_scatter
        descriptor_store dot dot_scaled elementwise_inline_asm expand_dims extern_elementwise fp_to_fp func gather
        get_num_programs get_program_id grid_dependency_launch_dependents grid_dependency_wait histogram
        int_to_ptr join load make_range make_tensor_descriptor make_tensor_ptr map_elementwise
        map_elementwise.return mulhiui precise_divf precise_sqrt print ptr_to_int reduce reduce.return reshape
        return scan scan.return splat split store trans unsplat
    """,
    "arith": """
        addf addi addui_extended andi bitcast ceildivsi ceildivui cmpf cmpi constant convertf divf divsi divui
        extf extsi extui floordivsi flush_denormals fptosi fptoui index_cast index_castui maximumf maxnumf maxsi
        maxui minimumf minnumf minsi minui mulf muli mulsi_extended mului_extended negf ori remf remsi remui
        scaling_extf scaling_truncf select shli shrsi shrui sitofp subf subi subui_extended truncf trunci uitofp
        xori
    """,
    "math": """
        absf absi acos acosh asin asinh atan atan2 atanh cbrt ceil clampf copysign cos cosh ctlz ctpop cttz erf
        erfc exp exp2 expm1 floor fma fpowi ipowi isfinite isinf isnan isnormal log log10 log1p log2 powf round
        roundeven rsqrt sin sincos sinh sqrt tan tanh trunc
    """,
    "scf": """
        condition execute_region for forall forall.in_parallel if index_switch parallel reduce reduce.return while
        yield
    """,
    "cf": """
        assert br cond_br switch
    """,
    "others": """
        gpu.barrier llvm.intr.assume ttg.barrier ub.poison ub.unreachable
    """,
}
OPERATIONS = tuple(
    name if dialect == "others" else f"{dialect}.{name}"
    for dialect, names in DIALECTS.items()
    for name in names.split()
)


def _because(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


REFUSED: dict[str, str] = {
    "tt.elementwise_inline_asm": "inline PTX is not run",
    "tt.atomic_poll": "it waits for another program, and programs run in step",
    **_because(
        "Triton rewrites block pointers before gridsim sees them",
        "tt.advance tt.make_tensor_ptr",
    ),
    **_because(
        "Triton's language has no word for it",
        """
        arith.addui_extended arith.ceildivui arith.convertf arith.flush_denormals arith.index_cast arith.index_castui
        arith.mulsi_extended arith.mului_extended arith.scaling_extf arith.scaling_truncf arith.subui_extended
        cf.assert cf.switch ub.unreachable
        math.acos math.acosh math.asin math.asinh math.atan math.atanh math.cbrt math.clampf math.copysign math.cosh
        math.ctlz math.cttz math.erfc math.fpowi math.ipowi math.isfinite math.isinf math.isnan math.isnormal
        math.sincos math.sinh
        scf.execute_region scf.forall scf.forall.in_parallel scf.index_switch scf.parallel scf.reduce
        scf.reduce.return
        """,
    ),
}
