"""The rule behind the pinned list of operators that a graph may call (`training/graph_check/operators.py`).

`python -m tests.training.graph_operators` prints the list as it follows from the torch that is installed.
"""

from __future__ import annotations

import textwrap

import torch

BY_TAG = {torch.Tag.core, torch.Tag.pointwise, torch.Tag.reduction}
"""Core ATen IR, and what works element by element or along a dimension."""
BESIDES = """
    __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__ _assert_async
    _assert_scalar _assert_tensor_metadata _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa _weight_norm
    absolute adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d addbmm addmm addmv addr adjoint affine_grid_generator allclose alpha_dropout arange arccos
    arccosh arcsin arcsinh arctan arctan2 arctanh argsort argwhere atleast_1d atleast_2d atleast_3d baddbmm
    bartlett_window batch_norm bilinear binary_cross_entropy binary_cross_entropy_with_logits bincount
    blackman_window block_diag bmm broadcast_tensors broadcast_to bucketize cartesian_prod cdist chain_matmul
    channel_shuffle cholesky chunk column_stack combinations complex concat concatenate conj constant_pad_nd
    contiguous conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d corrcoef
    cosine_embedding_loss cosine_similarity cov cross cross_entropy_loss cummax cummin cumprod cumulative_trapezoid
    det detach diag diag_embed diagflat diagonal_scatter diff dist divide dot dropout dsplit dstack einsum
    embedding_bag expand_as eye feature_alpha_dropout feature_dropout fft_fft fft_fft2 fft_fftfreq fft_fftn
    fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2
    fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn fill fix flatten fliplr
    flipud floor_divide frobenius_norm ger glu gradient greater greater_equal grid_sampler grid_sampler_3d
    group_norm gru gru_cell hamming_window hann_window hardswish hinge_embedding_loss histc hsplit hstack huber_loss
    im2col imag index_add index_copy index_fill index_put index_reduce inner instance_norm inverse isclose isin
    isreal istft item kaiser_window kl_div kron kthvalue l1_loss layer_norm less less_equal lift_fresh
    lift_fresh_copy linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det linalg_diagonal
    linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv linalg_inv_ex linalg_lstsq linalg_matmul
    linalg_matrix_exp linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_multi_dot linalg_norm
    linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd
    linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot linear linspace log_sigmoid
    log_softmax logcumsumexp logdet logspace lstm lstm_cell mH mT margin_ranking_loss masked_fill masked_scatter
    masked_select matmul matrix_H matrix_exp matrix_power max_pool1d max_pool1d_with_indices max_pool2d max_pool3d
    median meshgrid mode moveaxis movedim mse_loss msort multiply mv nanmean nanmedian nanquantile narrow negative
    new_full new_ones new_zeros nll_loss nll_loss_nd norm_except_dim not_equal numel numpy_T one_hot ones ones_like
    outer pad pairwise_distance pdist pinverse pixel_shuffle pixel_unshuffle poisson_nll_loss polar prelu quantile
    range ravel real renorm repeat_interleave replication_pad1d reshape reshape_as resolve_conj resolve_neg rms_norm
    rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 rrelu rsub scaled_dot_product_attention scatter
    scatter_add scatter_reduce searchsorted size slogdet smooth_l1_loss soft_margin_loss softmax sort
    special_digamma special_erf special_erfc special_erfinv special_exp2 special_expit special_expm1
    special_gammainc special_gammaincc special_gammaln special_i0 special_log1p special_log_softmax special_logit
    special_logsumexp special_multigammaln special_ndtr special_polygamma special_psi special_round special_sinc
    special_softmax special_xlogy split square squeeze stack stft stride subtract sum_to_size svd swapaxes swapdims
    sym_constrain_range sym_constrain_range_for_size t take take_along_dim tensor_split tensordot threshold tile to
    trace transpose trapezoid trapz tril tril_indices triplet_margin_loss triu triu_indices true_divide type_as
    unbind unflatten unfold unique_consecutive unique_dim upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d vander vdot view view_as
    view_as_complex view_as_real vsplit vstack where zero zeros zeros_like
"""
"""Operators that `torch.export` leaves whole (`linear`, `lstm`), and others over tensors that models call: by name, in
every overload that is pure. Not here: what trusts numbers of a graph to lie in its tensors (pivots of LU, lengths of
segments), what hands out memory as it was (`empty`), quantized, sparse and nested tensors, and a backend's own."""
WITHOUT_CHANCE = {
    *("alpha_dropout", "dropout", "feature_alpha_dropout", "feature_dropout", "gru", "lstm", "rnn_relu", "rnn_tanh"),
    *("rrelu", "scaled_dot_product_attention"),
}
"""They draw random numbers in training alone."""
STAYING = {"detach_"}
"""torch says that it changes a view, and what it changes is of autograd."""
OF_PACKED_SEQUENCES = "data"
"""Overloads of recurrent layers, which trust the lengths that they are given."""
EXCLUDED = {"empty", "empty_strided", "resize"}
"""Core ATen IR all the same."""
FOREIGN = ("Storage", "Stream", "Dimname", "torch.classes", "Any")
"""Kinds of arguments that are more than tensors, numbers and words."""


def allowed() -> set[str]:
    """`name.overload` of each operator of `aten` that a graph may call."""
    named = set(BESIDES.split())
    found = set()
    for name, overload in _overloads():
        plain = name.removesuffix("_") if name.endswith("_") and not name.endswith("__") else name
        is_meant = plain in named or bool(BY_TAG & set(overload.tags)) or _is_in_place_of_tagged(name, overload)
        if is_meant and plain not in EXCLUDED and _is_pure(plain, name, overload):
            found.add(f"{name}.{overload._overloadname}")
    return found


def _overloads() -> list[tuple[str, torch._ops.OpOverload]]:
    found = []
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if namespace == "aten" and hasattr(torch.ops.aten, name):
            found.append((name, getattr(getattr(torch.ops.aten, name), overload or "default")))
    return found


def _is_in_place_of_tagged(name: str, overload: torch._ops.OpOverload) -> bool:
    twin = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    same = getattr(twin, overload._overloadname, None)
    return same is not None and bool(BY_TAG & set(same.tags))


def _is_pure(plain: str, name: str, overload: torch._ops.OpOverload) -> bool:
    """Its results are functions of its arguments, and it changes nothing, or by its name the first of them alone."""
    tags, schema = set(overload.tags), overload._schema
    changed = [index for index, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write]
    is_in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
    return (
        "backward" not in name
        and torch.Tag.out not in tags
        and (torch.Tag.inplace_view not in tags or name in STAYING)
        and overload._overloadname != OF_PACKED_SEQUENCES
        and changed == ([0] if is_in_place else [])
        and (torch.Tag.nondeterministic_seeded not in tags or plain in WITHOUT_CHANCE)
        and not any(kind in str(each.type) for each in schema.arguments for kind in FOREIGN)
    )


def main() -> None:
    print("\n".join(textwrap.wrap(" ".join(sorted(allowed())), 116)))


if __name__ == "__main__":
    main()
