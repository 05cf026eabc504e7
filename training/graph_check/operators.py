"""The operators that a graph may call; torch looks them up by path. What is not on these lists is refused.

Those of `aten` are core ATen IR, and what `torch.export` leaves whole, as torch 2.13 has them: functions of their
arguments, which read and write no file, ask no network, keep no state and draw no number by chance, or such a function
that puts its result into its first argument (`add_`). `tests/training/graph_operators.py` has the rule, and a test
compares: of another torch it says what came and went.
"""

from __future__ import annotations

from .refusal import refuse

ARITHMETIC = {
    *(f"_operator.{name}" for name in ("eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "mod")),
    *(f"_operator.{name}" for name in ("floordiv", "truediv", "pow", "and_", "or_", "lshift", "rshift", "getitem")),
    *(f"torch.sym_{name}" for name in ("not", "int", "float", "ite", "max", "min")),
    *("torch._sym_sqrt", "torch.sym_sqrt", "math.trunc", "math.floor", "math.ceil", "math.sqrt"),
}
"""On sizes."""
HIGHER_ORDER = {
    f"torch.ops.higher_order.{name}"
    for name in ("cond", "while_loop", "scan", "map_impl", "associative_scan", "wrap_with_set_grad_enabled")
} | {"torch.ops.higher_order.wrap_with_autocast"}
"""Those that run graphs within the graph."""
ATEN = """
    __and__.Scalar __and__.Tensor __iand__.Scalar __iand__.Tensor __ilshift__.Scalar __ilshift__.Tensor __ior__.Scalar
    __ior__.Tensor __irshift__.Scalar __irshift__.Tensor __ixor__.Scalar __ixor__.Tensor __lshift__.Scalar
    __lshift__.Tensor __or__.Scalar __or__.Tensor __rshift__.Scalar __rshift__.Tensor __xor__.Scalar __xor__.Tensor
    _adaptive_avg_pool2d.default _adaptive_avg_pool3d.default _assert_async.default _assert_async.msg
    _assert_scalar.default _assert_tensor_metadata.default _cdist_forward.default _conj_physical.default
    _embedding_bag.default _fft_c2r.default _fft_r2c.default _local_scalar_dense.default _log_softmax.default
    _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training.default _pdist_forward.default
    _softmax.default _to_copy.default _unsafe_view.default _upsample_bicubic2d_aa.default _upsample_bicubic2d_aa.vec
    _upsample_bilinear2d_aa.default _upsample_bilinear2d_aa.vec _weight_norm.default abs.default abs_.default
    absolute.default absolute_.default acos.default acos_.default acosh.default acosh_.default
    adaptive_avg_pool1d.default adaptive_avg_pool2d.default adaptive_avg_pool3d.default adaptive_max_pool1d.default
    adaptive_max_pool2d.default adaptive_max_pool3d.default add.Scalar add.Tensor add_.Scalar add_.Tensor addbmm.default
    addbmm_.default addcdiv.default addcdiv_.default addcmul.default addcmul_.default addmm.default addmm.dtype
    addmm_.default addmv.default addmv_.default addr.default addr_.default adjoint.default affine_grid_generator.default
    alias.default all.default all.dim all.dims allclose.default alpha_dropout.default alpha_dropout_.default
    amax.default amin.default aminmax.default angle.default any.default any.dim any.dims arange.default arange.start
    arange.start_step arccos.default arccos_.default arccosh.default arccosh_.default arcsin.default arcsin_.default
    arcsinh.default arcsinh_.default arctan.default arctan2.default arctan2_.default arctan_.default arctanh.default
    arctanh_.default argmax.default argmin.default argsort.default argsort.stable argwhere.default as_strided.default
    asin.default asin_.default asinh.default asinh_.default atan.default atan2.default atan2_.default atan_.default
    atanh.default atanh_.default atleast_1d.Sequence atleast_1d.default atleast_2d.Sequence atleast_2d.default
    atleast_3d.Sequence atleast_3d.default avg_pool1d.default avg_pool2d.default avg_pool3d.default baddbmm.default
    baddbmm.dtype baddbmm_.default bartlett_window.default bartlett_window.periodic batch_norm.default bilinear.default
    binary_cross_entropy.default binary_cross_entropy_with_logits.default bincount.default bitwise_and.Scalar
    bitwise_and.Scalar_Tensor bitwise_and.Tensor bitwise_and_.Scalar bitwise_and_.Tensor
    bitwise_left_shift.Scalar_Tensor bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar
    bitwise_left_shift_.Tensor bitwise_left_shift_.Tensor_Scalar bitwise_not.default bitwise_not_.default
    bitwise_or.Scalar bitwise_or.Scalar_Tensor bitwise_or.Tensor bitwise_or_.Scalar bitwise_or_.Tensor
    bitwise_right_shift.Scalar_Tensor bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar
    bitwise_right_shift_.Tensor bitwise_right_shift_.Tensor_Scalar bitwise_xor.Scalar bitwise_xor.Scalar_Tensor
    bitwise_xor.Tensor bitwise_xor_.Scalar bitwise_xor_.Tensor blackman_window.default blackman_window.periodic
    block_diag.default bmm.default bmm.dtype broadcast_tensors.default broadcast_to.default bucketize.Scalar
    bucketize.Tensor cartesian_prod.default cat.default cdist.default ceil.default ceil_.default celu.default
    celu_.default chain_matmul.default channel_shuffle.default cholesky.default chunk.default clamp.Tensor clamp.default
    clamp_.Tensor clamp_.default clamp_max.Tensor clamp_max.default clamp_max_.Tensor clamp_max_.default
    clamp_min.Tensor clamp_min.default clamp_min_.Tensor clamp_min_.default clip.Tensor clip.default clip_.Tensor
    clip_.default clone.default col2im.default column_stack.default combinations.default complex.default concat.default
    concatenate.default conj.default conj_physical.default conj_physical_.default constant_pad_nd.default
    contiguous.default conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding
    conv_tbc.default conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input convolution.default
    copy.default copy_.default copysign.Scalar copysign.Tensor copysign_.Scalar copysign_.Tensor corrcoef.default
    cos.default cos_.default cosh.default cosh_.default cosine_embedding_loss.default cosine_similarity.default
    count_nonzero.default count_nonzero.dim_IntList cov.default cross.default cross_entropy_loss.default cummax.default
    cummin.default cumprod.default cumprod_.default cumsum.default cumsum_.default cumulative_trapezoid.dx
    cumulative_trapezoid.x deg2rad.default deg2rad_.default det.default detach.default detach_.default diag.default
    diag_embed.default diagflat.default diagonal.default diagonal_scatter.default diff.default digamma.default
    digamma_.default dist.default div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode div_.Scalar div_.Scalar_mode
    div_.Tensor div_.Tensor_mode divide.Scalar divide.Scalar_mode divide.Tensor divide.Tensor_mode divide_.Scalar
    divide_.Scalar_mode divide_.Tensor divide_.Tensor_mode dot.default dropout.default dropout_.default dsplit.array
    dsplit.int dstack.default einsum.default elu.default elu_.default embedding.default embedding_bag.default
    embedding_bag.padding_idx eq.Scalar eq.Tensor eq_.Scalar eq_.Tensor equal.default erf.default erf_.default
    erfc.default erfc_.default erfinv.default erfinv_.default exp.default exp2.default exp2_.default exp_.default
    expand.default expand_as.default expm1.default expm1_.default eye.default eye.m feature_alpha_dropout.default
    feature_alpha_dropout_.default feature_dropout.default feature_dropout_.default fft_fft.default fft_fft2.default
    fft_fftfreq.default fft_fftn.default fft_fftshift.default fft_hfft.default fft_hfft2.default fft_hfftn.default
    fft_ifft.default fft_ifft2.default fft_ifftn.default fft_ifftshift.default fft_ihfft.default fft_ihfft2.default
    fft_ihfftn.default fft_irfft.default fft_irfft2.default fft_irfftn.default fft_rfft.default fft_rfft2.default
    fft_rfftfreq.default fft_rfftn.default fill.Scalar fill.Tensor fill_.Scalar fill_.Tensor fix.default fix_.default
    flatten.using_ints flip.default fliplr.default flipud.default float_power.Scalar float_power.Tensor_Scalar
    float_power.Tensor_Tensor float_power_.Scalar float_power_.Tensor floor.default floor_.default floor_divide.Scalar
    floor_divide.default floor_divide_.Scalar floor_divide_.Tensor fmax.default fmin.default fmod.Scalar fmod.Tensor
    fmod_.Scalar fmod_.Tensor frac.default frac_.default frexp.Tensor frobenius_norm.dim full.default full_like.default
    gather.default gcd.default gcd_.default ge.Scalar ge.Tensor ge_.Scalar ge_.Tensor gelu.default gelu_.default
    ger.default glu.default gradient.array gradient.scalararray gradient.scalarint gradient.scalarrayarray
    gradient.scalarrayint gradient.tensorarray gradient.tensorarrayint greater.Scalar greater.Tensor greater_.Scalar
    greater_.Tensor greater_equal.Scalar greater_equal.Tensor greater_equal_.Scalar greater_equal_.Tensor
    grid_sampler.default grid_sampler_2d.default grid_sampler_3d.default group_norm.default gru.input gru_cell.default
    gt.Scalar gt.Tensor gt_.Scalar gt_.Tensor hamming_window.default hamming_window.periodic
    hamming_window.periodic_alpha hamming_window.periodic_alpha_beta hann_window.default hann_window.periodic
    hardshrink.default hardsigmoid.default hardsigmoid_.default hardswish.default hardswish_.default hardtanh.default
    hardtanh_.default heaviside.default heaviside_.default hinge_embedding_loss.default histc.default hsplit.array
    hsplit.int hstack.default huber_loss.default hypot.default hypot_.default i0.default i0_.default igamma.default
    igamma_.default igammac.default igammac_.default im2col.default imag.default index.Tensor index_add.default
    index_add_.default index_copy.default index_copy_.default index_fill.int_Scalar index_fill.int_Tensor
    index_fill_.int_Scalar index_fill_.int_Tensor index_put.default index_put_.default index_reduce.default
    index_reduce_.default index_select.default inner.default instance_norm.default inverse.default isclose.default
    isfinite.default isin.Scalar_Tensor isin.Tensor_Scalar isin.Tensor_Tensor isinf.default isnan.default
    isneginf.default isposinf.default isreal.default istft.default item.default kaiser_window.beta kaiser_window.default
    kaiser_window.periodic kl_div.default kron.default kthvalue.default l1_loss.default layer_norm.default lcm.default
    lcm_.default ldexp.Tensor ldexp_.default le.Scalar le.Tensor le_.Scalar le_.Tensor leaky_relu.default
    leaky_relu_.default lerp.Scalar lerp.Tensor lerp_.Scalar lerp_.Tensor less.Scalar less.Tensor less_.Scalar
    less_.Tensor less_equal.Scalar less_equal.Tensor less_equal_.Scalar less_equal_.Tensor lgamma.default
    lgamma_.default lift_fresh.default lift_fresh_copy.default linalg__powsum.default linalg_cholesky.default
    linalg_cholesky_ex.default linalg_cond.default linalg_cond.p_str linalg_cross.default linalg_det.default
    linalg_diagonal.default linalg_eig.default linalg_eigh.default linalg_eigvals.default linalg_eigvalsh.default
    linalg_inv.default linalg_inv_ex.default linalg_lstsq.default linalg_matmul.default linalg_matrix_exp.default
    linalg_matrix_norm.default linalg_matrix_norm.str_ord linalg_matrix_power.default linalg_matrix_rank.atol_rtol_float
    linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.default linalg_matrix_rank.tol_tensor
    linalg_multi_dot.default linalg_norm.default linalg_norm.ord_str linalg_pinv.atol_rtol_float
    linalg_pinv.atol_rtol_tensor linalg_pinv.default linalg_pinv.rcond_tensor linalg_qr.default linalg_slogdet.default
    linalg_solve.default linalg_solve_ex.default linalg_solve_triangular.default linalg_svd.default
    linalg_svdvals.default linalg_tensorinv.default linalg_tensorsolve.default linalg_vander.default
    linalg_vecdot.default linalg_vector_norm.default linear.default linspace.Scalar_Tensor linspace.Tensor_Scalar
    linspace.Tensor_Tensor linspace.default log.default log10.default log10_.default log1p.default log1p_.default
    log2.default log2_.default log_.default log_sigmoid.default log_softmax.int logaddexp.default logaddexp2.default
    logcumsumexp.default logdet.default logical_and.default logical_and_.default logical_not.default
    logical_not_.default logical_or.default logical_or_.default logical_xor.default logical_xor_.default logit.default
    logit_.default logspace.Scalar_Tensor logspace.Tensor_Scalar logspace.Tensor_Tensor logspace.default
    logsumexp.default lstm.input lstm_cell.default lt.Scalar lt.Tensor lt_.Scalar lt_.Tensor mH.default mT.default
    margin_ranking_loss.default masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar masked_fill_.Tensor
    masked_scatter.default masked_scatter_.default masked_select.default matmul.default matrix_H.default
    matrix_exp.default matrix_power.default max.default max.dim max.other max_pool1d.default
    max_pool1d_with_indices.default max_pool2d.default max_pool2d_with_indices.default max_pool3d.default
    max_pool3d_with_indices.default maximum.default mean.default mean.dim median.default median.dim meshgrid.default
    meshgrid.indexing min.default min.dim min.other minimum.default mish.default mish_.default mm.default mode.default
    moveaxis.int moveaxis.intlist movedim.int movedim.intlist mse_loss.default msort.default mul.Scalar mul.Tensor
    mul_.Scalar mul_.Tensor multiply.Scalar multiply.Tensor multiply_.Scalar multiply_.Tensor mv.default
    mvlgamma.default mvlgamma_.default nan_to_num.default nan_to_num_.default nanmean.default nanmedian.default
    nanmedian.dim nanquantile.default nanquantile.scalar nansum.default narrow.Tensor narrow.default
    native_group_norm.default native_layer_norm.default ne.Scalar ne.Tensor ne_.Scalar ne_.Tensor neg.default
    neg_.default negative.default negative_.default new_full.default new_ones.default new_zeros.default
    nextafter.default nextafter_.default nll_loss.default nll_loss_nd.default nonzero.default norm.Scalar
    norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype norm_except_dim.default not_equal.Scalar
    not_equal.Tensor not_equal_.Scalar not_equal_.Tensor numel.default numpy_T.default one_hot.default ones.default
    ones_like.default outer.default pad.default pairwise_distance.default pdist.default permute.default pinverse.default
    pixel_shuffle.default pixel_unshuffle.default poisson_nll_loss.default polar.default polygamma.default
    polygamma_.default positive.default pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor pow_.Scalar pow_.Tensor
    prelu.default prod.default prod.dim_int quantile.default quantile.scalar rad2deg.default rad2deg_.default
    range.default range.step ravel.default real.default reciprocal.default reciprocal_.default reflection_pad1d.default
    reflection_pad2d.default reflection_pad3d.default relu.default relu6.default relu6_.default relu_.default
    remainder.Scalar remainder.Scalar_Tensor remainder.Tensor remainder_.Scalar remainder_.Tensor renorm.default
    renorm_.default repeat.default repeat_interleave.Tensor repeat_interleave.self_Tensor repeat_interleave.self_int
    replication_pad1d.default replication_pad2d.default replication_pad3d.default reshape.default reshape_as.default
    resolve_conj.default resolve_neg.default rms_norm.default rnn_relu.input rnn_relu_cell.default rnn_tanh.input
    rnn_tanh_cell.default roll.default rot90.default round.decimals round.default round_.decimals round_.default
    rrelu.default rrelu_.default rsqrt.default rsqrt_.default rsub.Scalar rsub.Tensor scalar_tensor.default
    scaled_dot_product_attention.default scatter.reduce scatter.src scatter.value scatter.value_reduce scatter_.reduce
    scatter_.src scatter_.value scatter_.value_reduce scatter_add.default scatter_add_.default scatter_reduce.two
    scatter_reduce_.two searchsorted.Scalar searchsorted.Tensor select.int select_scatter.default selu.default
    selu_.default sgn.default sgn_.default sigmoid.default sigmoid_.default sign.default sign_.default signbit.default
    silu.default silu_.default sin.default sin_.default sinc.default sinc_.default sinh.default sinh_.default size.int
    slice.Tensor slice_scatter.default slogdet.default smooth_l1_loss.default soft_margin_loss.default softmax.int
    softplus.default softshrink.default sort.default sort.stable special_airy_ai.default special_bessel_j0.default
    special_bessel_j1.default special_bessel_y0.default special_bessel_y1.default special_chebyshev_polynomial_t.default
    special_chebyshev_polynomial_t.n_scalar special_chebyshev_polynomial_t.x_scalar
    special_chebyshev_polynomial_u.default special_chebyshev_polynomial_u.n_scalar
    special_chebyshev_polynomial_u.x_scalar special_chebyshev_polynomial_v.default
    special_chebyshev_polynomial_v.n_scalar special_chebyshev_polynomial_v.x_scalar
    special_chebyshev_polynomial_w.default special_chebyshev_polynomial_w.n_scalar
    special_chebyshev_polynomial_w.x_scalar special_digamma.default special_entr.default special_erf.default
    special_erfc.default special_erfcx.default special_erfinv.default special_exp2.default special_expit.default
    special_expm1.default special_gammainc.default special_gammaincc.default special_gammaln.default
    special_hermite_polynomial_h.default special_hermite_polynomial_h.n_scalar special_hermite_polynomial_h.x_scalar
    special_hermite_polynomial_he.default special_hermite_polynomial_he.n_scalar special_hermite_polynomial_he.x_scalar
    special_i0.default special_i0e.default special_i1.default special_i1e.default special_laguerre_polynomial_l.default
    special_laguerre_polynomial_l.n_scalar special_laguerre_polynomial_l.x_scalar special_legendre_polynomial_p.default
    special_legendre_polynomial_p.n_scalar special_legendre_polynomial_p.x_scalar special_log1p.default
    special_log_ndtr.default special_log_softmax.default special_logit.default special_logsumexp.default
    special_modified_bessel_i0.default special_modified_bessel_i1.default special_modified_bessel_k0.default
    special_modified_bessel_k1.default special_multigammaln.default special_ndtr.default special_ndtri.default
    special_polygamma.default special_psi.default special_round.default special_scaled_modified_bessel_k0.default
    special_scaled_modified_bessel_k1.default special_shifted_chebyshev_polynomial_t.default
    special_shifted_chebyshev_polynomial_t.n_scalar special_shifted_chebyshev_polynomial_t.x_scalar
    special_shifted_chebyshev_polynomial_u.default special_shifted_chebyshev_polynomial_u.n_scalar
    special_shifted_chebyshev_polynomial_u.x_scalar special_shifted_chebyshev_polynomial_v.default
    special_shifted_chebyshev_polynomial_v.n_scalar special_shifted_chebyshev_polynomial_v.x_scalar
    special_shifted_chebyshev_polynomial_w.default special_shifted_chebyshev_polynomial_w.n_scalar
    special_shifted_chebyshev_polynomial_w.x_scalar special_sinc.default special_softmax.default
    special_spherical_bessel_j0.default special_xlog1py.default special_xlog1py.other_scalar special_xlog1py.self_scalar
    special_xlogy.default special_xlogy.other_scalar special_xlogy.self_scalar special_zeta.default
    special_zeta.other_scalar special_zeta.self_scalar split.Tensor split.sizes split_with_sizes.default sqrt.default
    sqrt_.default square.default square_.default squeeze.default squeeze.dim squeeze.dims stack.default std.correction
    std.default std.dim std_mean.correction std_mean.default std_mean.dim stft.center stft.default stride.int sub.Scalar
    sub.Tensor sub_.Scalar sub_.Tensor subtract.Scalar subtract.Tensor subtract_.Scalar subtract_.Tensor sum.default
    sum.dim_IntList sum_to_size.default svd.default swapaxes.default swapdims.default sym_constrain_range.default
    sym_constrain_range_for_size.default sym_is_contiguous.default sym_numel.default sym_size.int
    sym_storage_offset.default sym_stride.int t.default take.default take_along_dim.default tan.default tan_.default
    tanh.default tanh_.default tensor_split.indices tensor_split.sections tensor_split.tensor_indices_or_sections
    tensordot.default threshold.default threshold_.default tile.default to.device to.dtype to.dtype_layout to.other
    topk.default trace.default transpose.int trapezoid.dx trapezoid.x trapz.dx trapz.x tril.default tril_.default
    tril_indices.default triplet_margin_loss.default triu.default triu_.default triu_indices.default true_divide.Scalar
    true_divide.Tensor true_divide_.Scalar true_divide_.Tensor trunc.default trunc_.default type_as.default unbind.int
    unflatten.int unfold.default unique_consecutive.default unique_dim.default unsqueeze.default
    upsample_bicubic2d.default upsample_bicubic2d.vec upsample_bilinear2d.default upsample_bilinear2d.vec
    upsample_linear1d.default upsample_linear1d.vec upsample_nearest1d.default upsample_nearest1d.vec
    upsample_nearest2d.default upsample_nearest2d.vec upsample_nearest3d.default upsample_nearest3d.vec
    upsample_trilinear3d.default upsample_trilinear3d.vec vander.default var.correction var.default var.dim
    var_mean.correction var_mean.default var_mean.dim vdot.default view.default view.dtype view_as.default
    view_as_complex.default view_as_real.default vsplit.array vsplit.int vstack.default where.Scalar where.ScalarOther
    where.ScalarSelf where.default where.self xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor xlogy_.Scalar_Other
    xlogy_.Tensor zero.default zero_.default zeros.default zeros_like.default
"""
OPERATORS = frozenset({f"torch.ops.aten.{each}" for each in ATEN.split()} | ARITHMETIC | HIGHER_ORDER)


def require_operator(target: str) -> None:
    """Raises `UnsafeGraph`: no graph may call it."""
    if target not in OPERATORS:
        raise refuse("it calls an operator that no graph may call", target)
