% What `resolvents.pl` answers, and whether a goal can be proved within so many steps:
%
%   prove(Query, Excluded, Depth, Inferences).   -> 1: it can, 0: it cannot, -1: not decided within so many inferences
%
% A step resolves the first atom with a clause. A ground atom that is a fact, and not excluded, is proved without a step, unless
% it is the query.

:- discontiguous(answer/2).
:- include('../reference/resolvents.pl').

answer(prove(Query, Excluded, Depth, Inferences), Decided) :-
    call_with_inference_limit(provable(Query, Excluded, Depth), Inferences, Result),
    !,
    (   Result == inference_limit_exceeded
    ->  Decided = -1
    ;   Decided = 1
    ).
answer(prove(_, _, _, _), 0).

provable(Query, Excluded, Depth) :-
    step(Query, [], Excluded, Depth).

step(Selected, Rest, Excluded, Depth) :-
    Depth > 0,
    Left is Depth - 1,
    clause_of(Selected, Body),
    \+ (Body == [], Selected == Excluded),
    append(Body, Rest, Goal),
    all_provable(Goal, Excluded, Left).

all_provable([], _, _).
all_provable([First|Rest], Excluded, Depth) :-
    (   ground(First), First \== Excluded, clause_of(First, [])
    ->  all_provable(Rest, Excluded, Depth)
    ;   step(First, Rest, Excluded, Depth)
    ).
